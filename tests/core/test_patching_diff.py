"""Reading diffs: every refusal by name and line, and the cases in which other tools are silently wrong."""

from __future__ import annotations

import pytest

from gemmaspec.core.errors import PatchError
from gemmaspec.core.launcher import launch
from gemmaspec.core.patching.diff import DiffFile, DiffHunk, parse_diff

HEAD = "--- a/vllm/m.py\n+++ b/vllm/m.py\n"
GOOD = HEAD + "@@ -1,3 +1,3 @@\n a\n-b\n+c\n d\n"
SECOND = GOOD.replace("m.py", "n.py")
GIT = "diff --git a/vllm/m.py b/vllm/m.py\n"
WANTED = DiffFile(path="vllm/m.py", hunks=(DiffHunk(line=1, old=("a", "b", "d"), new=("a", "c", "d")),))


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.removesuffix("\n"),
        GIT + "index 1234567..89abcde 100644\n" + GOOD,
        GIT + "index 1234567..89abcde\n" + GOOD,
        GOOD.replace("m.py\n", "m.py\t2026-11-20 17:00:00.000000000 +0000\n"),
        GOOD.replace("+1,3 @@", "+1,3 @@ def f():"),
    ],
)
def test_plain_edits_are_read_whoever_wrote_the_diff(text: str) -> None:
    assert parse_diff(text, "x.diff") == (WANTED,)


def test_several_files_and_hunks_come_in_order() -> None:
    more = GOOD + "@@ -10 +10,2 @@\n e\n+f\n"
    first, second = parse_diff(more + SECOND, "x.diff")
    assert [hunk.line for hunk in first.hunks] == [1, 10]
    assert first.hunks[1] == DiffHunk(line=10, old=("e",), new=("e", "f"))
    assert second.path == "vllm/n.py"


def test_lines_keep_every_character_but_the_line_break() -> None:
    text = HEAD + "@@ -1,2 +1,2 @@\n \tx\x0c\u2028 é \n--- minus\n+++ plus\n"
    (hunk,) = parse_diff(text, "x.diff")[0].hunks
    assert hunk.old == ("\tx\x0c\u2028 é ", "-- minus")
    assert hunk.new == ("\tx\x0c\u2028 é ", "++ plus")


REFUSED = {
    "empty": ("", "x.diff:1: not a unified diff: it edits no file"),
    "prose": ("fix the bug\n", "x.diff:1: this line is outside all hunks"),
    "prose before": ("From: me\n" + GOOD, "x.diff:1: this line is outside all hunks"),
    "prose between": (GOOD + "and then\n" + SECOND, "x.diff:8: this line is outside all hunks"),
    "trailing garbage": (GOOD + "-- \n2.43.0\n", "x.diff:8: this line is outside all hunks"),
    "an empty line at the end": (GOOD + "\n", "x.diff:8: this line is outside all hunks"),
    "a count that is too low": (GOOD.replace("-1,3 +1,3", "-1,2 +1,2"), "x.diff:7: this line is outside all hunks"),
    "a count that is too high": (GOOD.replace("-1,3 +1,3", "-1,4 +1,4"), "x.diff:7: Hunk is shorter"),
    "counts that disagree": (GOOD.replace("-1,3 +1,3", "-1,3 +1,2"), "x.diff:7: Hunk is longer"),
    "a context diff": (
        "*** a/vllm/m.py\n--- b/vllm/m.py\n***************\n",
        "x.diff:1: the diff is a context diff",
    ),
    "headers only": (HEAD, "x.diff:1: vllm/m.py has no hunks"),
    "a hunk without a file": ("@@ -1 +1 @@\n-a\n+b\n", "x.diff:1: Unexpected hunk found"),
    "one header": (GOOD.removeprefix("--- a/vllm/m.py\n"), "x.diff:1: Target without source"),
    "swapped headers": ("+++ b/vllm/m.py\n--- a/vllm/m.py\n", "x.diff:1: Target without source"),
    "CRLF": (GOOD.replace("\n", "\r\n"), "x.diff:1: the diff contains CRLF line endings"),
    "a CRLF line": (GOOD.replace("+c\n", "+c\r\n"), "x.diff:6: the diff contains CRLF line endings"),
    "NUL": (GOOD.replace("+c", "+c\0"), "x.diff:6: the diff contains a control character"),
    "an absolute path": (GOOD.replace("a/vllm", "/etc/vllm"), "x.diff:1: a path must have the form"),
    "an absolute new path": (GOOD.replace("b/vllm", "/vllm"), "x.diff:2: a path must have the form"),
    "no prefixes": (GOOD.replace("a/", "").replace("b/", ""), "x.diff:1: a path must have the form"),
    "a path that climbs": (
        GOOD.replace("vllm/m.py", "vllm/../../m.py"),
        "x.diff:2: 'vllm/../../m.py' is not the path of a .py",
    ),
    "a path outside vllm": (
        GOOD.replace("vllm/m.py", "torch/m.py"),
        "x.diff:2: 'torch/m.py' is not the path of a .py file in vllm/",
    ),
    "no Python": (GOOD.replace("m.py", "m.cu"), "x.diff:2: 'vllm/m.cu' is not the path of a .py file in vllm/"),
    "a quoted path": (
        GOOD.replace("a/vllm/m.py", '"a/vllm/m\\303.py"'),
        "x.diff:1: a path must have the form",
    ),
    "two names": (
        GOOD.replace("b/vllm/m.py", "b/vllm/n.py"),
        "x.diff:1: the header names vllm/m.py, but the hunks that follow are for another file",
    ),
    "a git header of another file": (GIT.replace("m.py", "n.py") + GOOD, "x.diff:3: Target without source"),
    "a rename": (
        GIT.replace("b/vllm/m", "b/vllm/n") + "similarity index 100%\nrename from vllm/m.py\n",
        "x.diff:2: the diff renames or copies a file",
    ),
    "a copy": (
        GIT + "copy from vllm/m.py\ncopy to vllm/m.py\n" + GOOD,
        "x.diff:2: the diff renames or copies",
    ),
    "a mode": (GIT + "old mode 100644\nnew mode 100755\n", "x.diff:2: the diff changes the mode of a file"),
    "a mode and lines": (
        GIT + "old mode 100644\nnew mode 100755\n" + GOOD,
        "x.diff:2: the diff changes the mode",
    ),
    "binary": (GIT + "Binary files a/vllm/m.py and b/vllm/m.py differ\n", "x.diff:2: the diff is binary"),
    "a git binary": (GIT + "GIT binary patch\nliteral 1\n", "x.diff:2: the diff is binary"),
    "a new file": (
        GIT + "new file mode 100644\n--- /dev/null\n+++ b/vllm/m.py\n@@ -0,0 +1 @@\n+a\n",
        "x.diff:2: the",
    ),
    "a new file, plain": (
        "--- /dev/null\n+++ b/vllm/m.py\n@@ -0,0 +1 @@\n+a\n",
        "x.diff:1: the diff adds a file",
    ),
    "a deleted file": (
        "--- a/vllm/m.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
        "x.diff:2: the diff deletes a file",
    ),
    "overlap": (GOOD + "@@ -2,2 +2,2 @@\n x\n-y\n+z\n", "x.diff:8: this hunk overlaps"),
    "hunks upwards": (
        GOOD.replace("-1,3 +1,3", "-9,3 +9,3") + "@@ -1 +1 @@\n-y\n+z\n",
        "x.diff:8: this hunk overlaps",
    ),
    "sides that drift": (
        GOOD.replace("+1,3", "+2,3"),
        "x.diff:3: after the previous hunks, the new side must begin at line 1",
    ),
    "a file twice": (GOOD + GOOD, "x.diff:9: the diff edits vllm/m.py twice"),
    "an insertion without context": (HEAD + "@@ -1,0 +2 @@\n+c\n", "x.diff:3: the hunk has no old lines"),
    "a deletion without context": (
        HEAD + "@@ -1 +0,0 @@\n-c\n",
        "x.diff:3: the hunk adds no code and keeps no line above and below the change",
    ),
    "a deletion": (
        HEAD + "@@ -1,2 +1 @@\n a\n-c\n",
        "x.diff:3: the hunk adds no code and keeps no line below the change",
    ),
    "blanks only": (
        HEAD + "@@ -1 +1,2 @@\n a\n+   \n",
        "x.diff:3: the hunk adds no code and keeps no line below the change",
    ),
    "no change": (HEAD + "@@ -1,2 +1,2 @@\n a\n b\n", "x.diff:3: the hunk changes no line"),
    "the last newline": (GOOD + "\\ No newline at end of file\n", "x.diff:8: the diff changes the newline"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_plain_edit_is_refused_by_file_and_line(what: str) -> None:
    text, message = REFUSED[what]
    with pytest.raises(PatchError) as refusal:
        parse_diff(text, "x.diff")
    said = str(refusal.value)
    assert said.startswith(message)
    assert "\n" not in said


# Where `patch --batch`, `patch -N -F0`, `git apply` or patch-ng go wrong without saying so


def decide(source: str, diff: str, scope: str = "") -> launch.FileResult:
    (file,) = parse_diff(diff, "x.diff")
    hunks = tuple(launch.Hunk(scope, hunk.line, hunk.old, hunk.new) for hunk in file.hunks)
    return launch.decide_file(launch.FileEdit(file.path, hunks), source.encode())


CATCH = "    try:\n        go()\n    except AssertionError:\n        return False\n"
FOUR = "".join(f"def f{index}():\n{CATCH}" for index in range(4))
FIX = (
    HEAD
    + "@@ -12,3 +12,3 @@\n         go()\n-    except AssertionError:\n+    except (AssertionError, ValueError):\n"
    + "         return False\n"
)


def test_a_look_alike_inserted_above_is_not_patched_in_place_of_the_right_one() -> None:
    """`patch -F0` and `git apply` both exit 0 here, having changed the function before the one that was meant."""
    moved = f"def inserted():\n{CATCH}" + FOUR
    assert decide(moved, FIX).state == "ambiguous"
    after = decide(moved, FIX, "f2").after
    assert after is not None
    before, _, patched = after.decode().partition("def f2")
    assert "ValueError" not in before
    assert patched.count("ValueError") == 1


def test_a_second_run_does_not_take_the_patch_out_again() -> None:
    """`patch --batch` exits 0 on its second run, having reversed the patch."""
    once = decide(FOUR, FIX, "f2").after
    assert once is not None
    again = decide(once.decode(), FIX, "f2")
    assert (again.state, again.after) == ("applied", once)


def test_context_that_changed_is_a_conflict_not_fuzz() -> None:
    """`patch` drops up to two lines of context ("fuzz") and exits 0."""
    assert decide(FOUR.replace("go()", "gone()"), FIX, "f2").state == "conflict"


def test_a_patch_that_is_half_in_is_neither_finished_nor_reversed() -> None:
    """`patch --batch` reverses the half that is in."""
    two = FIX + FIX.removeprefix(HEAD).replace("12,3", "17,3")
    (file,) = parse_diff(two, "x.diff")
    hunks = tuple(
        launch.Hunk(scope, hunk.line, hunk.old, hunk.new) for scope, hunk in zip(("f2", "f3"), file.hunks, strict=True)
    )
    once = decide(FOUR, FIX, "f2").after
    assert launch.decide_file(launch.FileEdit(file.path, hunks), FOUR.encode()).state == "applies"
    assert launch.decide_file(launch.FileEdit(file.path, hunks), once).state == "conflict"


def test_a_shift_of_forty_lines_is_no_conflict() -> None:
    """patch-ng looks at the stated line only."""
    result = decide("x = 1\n" * 40 + FOUR, FIX, "f2")
    assert (result.state, result.line) == ("applies", 53)


def test_a_target_with_crlf_is_patched_in_its_own_line_endings() -> None:
    """patch and git apply fail; patch-ng mixes the endings."""
    result = decide(FOUR.replace("\n", "\r\n"), FIX, "f2")
    assert result.after is not None
    assert result.after.count(b"\n") == result.after.count(b"\r\n")
