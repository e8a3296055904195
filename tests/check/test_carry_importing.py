"""Importing a diff: from a file, and from a fake of a server on this machine."""

from __future__ import annotations

import difflib
import hashlib
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gemmaspec.check.carry.importing import Import, ImportRequest, _diff_address, _id_of, import_diff
from gemmaspec.cli.app import run
from gemmaspec.core.errors import PatchConflict, PatchError, UsageError
from gemmaspec.core.patching.decide import decide
from gemmaspec.core.patching.patch import load_patch
from gemmaspec.core.patching.plan import launcher_patch
from tests.support import vllm_trees as fake
from tests.support.carrying import OLD, TORN, snapshot, use_releases

PULL = """\
diff --git a/tests/test_core.py b/tests/test_core.py
new file mode 100644
index 0000000..89abcde
--- /dev/null
+++ b/tests/test_core.py
@@ -0,0 +1 @@
+assert True
diff --git a/vllm/v1/core.py b/vllm/v1/core.py
index 1234567..89abcde 100644
--- a/vllm/v1/core.py
+++ b/vllm/v1/core.py
@@ -6,5 +6,6 @@ def value(x):
     for one in x:
         total += one
     if total:
-        return "stock"
+        # as upstream has it
+        return "patched"
     return None
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for _ in fake.own_cache(monkeypatch, tmp_path / "cache"):
        use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=TORN)
        yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "Fix value().diff"
    place.write_text(PULL)
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "patches"


def imported(source: Path | str, folder: Path, **more: str) -> Import:
    return import_diff(ImportRequest(source=str(source), folder=folder, **more))  # type: ignore[arg-type]


def test_a_diff_is_reduced_pinned_and_unreviewed(file: Path, folder: Path) -> None:
    done = imported(file, folder, date="2026-11-20")
    assert (done.dropped, done.tried) == (("tests/test_core.py",), "")
    text = load_patch(folder / "fix-value").text
    assert text.imported is not None
    assert text.imported.model_dump() == {
        "source": file.name,
        "sha256": hashlib.sha256(PULL.encode()).hexdigest(),
        "date": "2026-11-20",
    }
    assert not text.reviewed
    assert (text.variants[0].versions, text.variants[0].scopes) == (">=0.19.0", {"vllm/v1/core.py": ("value",)})
    assert (folder / "fix-value/0.19.diff").read_text() == PULL[PULL.index("diff --git a/vllm") :]


def test_with_a_release_it_is_the_least_diff_that_does_the_same(file: Path, folder: Path) -> None:
    done = imported(file, folder, release="0.20.0")
    assert done.tried == "vllm 0.20.0"
    assert (folder / "fix-value/0.20.diff").read_text() == (
        "--- a/vllm/v1/core.py\n+++ b/vllm/v1/core.py\n@@ -9 +9,2 @@\n"
        '-        return "stock"\n+        # as upstream has it\n+        return "patched"\n'
    )
    assert load_patch(folder / "fix-value").text.variants[0].versions == ">=0.20.0"


DOCUMENTED = OLD.replace("def value(x):\n", 'def value(x):\n    """Says stock.\n\n    Or nothing.\n    """\n')


def diff_of(old: str, new: str) -> str:
    """What `git diff` prints of the file."""
    lines = (text.splitlines(keepends=True) for text in (old, new))
    return "".join(difflib.unified_diff(*lines, "a/vllm/v1/core.py", "b/vllm/v1/core.py"))


def test_context_may_begin_inside_a_docstring(folder: Path, tmp_path: Path) -> None:
    """Three lines of context above the first statement of a function are its docstring's."""
    file, tree = tmp_path / "start.diff", fake.write_tree(tmp_path / "tree", version="0.22.0", core=DOCUMENTED)
    file.write_text(diff_of(DOCUMENTED, DOCUMENTED.replace("total = 0", "total = 1")))
    assert file.read_text().splitlines()[3:5] == [" ", "     Or nothing."]
    import_diff(ImportRequest(source=str(file), folder=folder, tree=tree))
    assert (folder / "start/0.22.diff").read_text().splitlines()[3:] == ["-    total = 0", "+    total = 1"]
    assert load_patch(folder / "start").text.variants[0].scopes == {"vllm/v1/core.py": ("value",)}


def test_lines_that_only_go_are_imported_with_their_context(folder: Path, tmp_path: Path) -> None:
    """Gone lines leave no line of their own: what stood above and below them, now neighbours, is the trace."""
    gone = OLD.replace("    if total:\n", "    log(total)\n    if total:\n")
    file, tree = tmp_path / "no-log.diff", fake.write_tree(tmp_path / "tree", version="0.22.0", core=gone)
    file.write_text(diff_of(gone, OLD))
    import_diff(ImportRequest(source=str(file), folder=folder, tree=tree))
    assert (folder / "no-log/0.22.diff").read_text() == (
        "--- a/vllm/v1/core.py\n+++ b/vllm/v1/core.py\n@@ -7,3 +7,2 @@\n"
        "         total += one\n-    log(total)\n     if total:\n"
    )
    patch = launcher_patch(load_patch(folder / "no-log"))
    states = {text: decide((patch,), "0.22.0", lambda _, text=text: text.encode())[-1].state for text in (gone, OLD)}
    assert states == {gone: "applies", OLD: "applied"}


TWICE = "".join(
    f"def {name}(x):\n    y = x\n    z = y\n    if z:\n        return y\n    return z\n\n\n" for name in "abc"
)


def test_among_look_alikes_the_line_of_a_diff_made_from_this_file_decides(folder: Path, tmp_path: Path) -> None:
    """Three lines of context occur in every function; with them alone the place is ambiguous."""
    old, lines = TWICE, TWICE.splitlines(keepends=True)
    lines[12] = "        return z + 1\n"  # in b
    file, tree = tmp_path / "b.diff", fake.write_tree(tmp_path / "tree", version="0.22.0", core=old)
    file.write_text(diff_of(old, "".join(lines)))
    import_diff(ImportRequest(source=str(file), folder=folder, tree=tree))
    assert load_patch(folder / "b").text.variants[0].scopes == {"vllm/v1/core.py": ("b",)}
    moved = fake.write_tree(tmp_path / "moved", version="0.22.0", core="import os\n" + old)
    with pytest.raises(PatchConflict, match="ambiguous: the old lines occur 3 times in the file: lines 3, 11, 19"):
        import_diff(ImportRequest(source=str(file), folder=folder / "other", tree=moved))


def test_a_blank_line_between_two_lines_of_code_is_imported(folder: Path, tmp_path: Path) -> None:
    file, tree = tmp_path / "blank.diff", fake.write_tree(tmp_path / "tree", version="0.22.0", core=OLD)
    file.write_text(diff_of(OLD, OLD.replace("    for one", "\n    for one").replace('"stock"', '"patched"', 1)))
    import_diff(ImportRequest(source=str(file), folder=folder, tree=tree))
    assert (folder / "blank/0.22.diff").read_text().splitlines()[2:6] == [
        "@@ -5,2 +5,3 @@", "     total = 0", "+", "     for one in x:"
    ]  # fmt: skip


def test_lines_that_go_at_the_end_of_the_file_are_refused_with_the_reason(folder: Path, tmp_path: Path) -> None:
    file, tree = tmp_path / "end.diff", fake.write_tree(tmp_path / "tree", version="0.22.0", core=OLD)
    file.write_text(diff_of(OLD, OLD.partition("\n\ndef other")[0]))
    with pytest.raises(PatchError, match=r"end.diff:3: the hunk adds no code and keeps no line below") as caught:
        import_diff(ImportRequest(source=str(file), folder=folder, tree=tree))
    assert "replace the lines by a comment" in str(caught.value.hint)


def test_the_same_bytes_give_the_same_patch(file: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        imported(file, tmp_path / name, release="0.20.0")
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


def test_a_diff_that_does_not_fit_the_release_is_told_from_one_that_is_in_it(file: Path, folder: Path) -> None:
    with pytest.raises(PatchConflict, match=r"fix-value does not apply to vllm 0\.21\.0: vllm/v1/core\.py:6: conflict"):
        imported(file, folder, release="0.21.0")
    done = OLD.replace('        return "stock"', '        # as upstream has it\n        return "patched"', 1)
    tree = fake.write_tree(folder.parent / "tree", version="0.22.0", core=done)
    with pytest.raises(PatchConflict, match="already has it"):
        import_diff(ImportRequest(source=str(file), folder=folder, tree=tree))
    assert not folder.exists()


def test_an_id_that_is_taken_or_none_is_refused(file: Path, folder: Path) -> None:
    imported(file, folder)
    before = snapshot(folder)
    with pytest.raises(UsageError, match="already exists"):
        imported(file, folder)
    for id_ in ("../x", "A b"):
        with pytest.raises(UsageError, match="invalid patch id"):
            imported(file, folder, id=id_)
    with pytest.raises(UsageError, match="cannot make an id"):
        imported("https://x/?", folder)
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "invalid UTF-8 at byte 0"),
        (PULL.replace("vllm/v1/core.py", "vllm/../../x.py").encode(), "which leaves the folder or is quoted"),
        (PULL.replace("tests/test_core.py", "vllm/new.py").encode(), "adds a file"),
        (b"<html>", "not the beginning of a diff"),
    ],
)
def test_a_hostile_file_leaves_nothing_behind(content: bytes, said: str, file: Path, folder: Path) -> None:
    file.write_bytes(content)
    with pytest.raises(PatchError, match=said):
        imported(file, folder)
    assert not list(folder.rglob("*"))


def test_a_file_that_is_none_or_too_large_is_refused(folder: Path, tmp_path: Path) -> None:
    large = tmp_path / "large.diff"
    with large.open("wb") as opened:
        opened.truncate(6 * 1024 * 1024)
    with pytest.raises(UsageError, match="is too large for a patch"):
        imported(large, folder)
    for other in (tmp_path / "gone.diff", tmp_path):
        with pytest.raises(UsageError, match="does not exist"):
            imported(other, folder)


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fake of a public server."""
    root = tmp_path / "served"
    root.mkdir()
    (root / "41752.diff").write_text(PULL)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/41752.diff"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_an_address_is_read_and_written_down(address: str, folder: Path) -> None:
    origin = imported(address, folder, id="value-as-upstream").patch.text.imported
    assert origin is not None
    assert (origin.source, origin.sha256) == (address, hashlib.sha256(PULL.encode()).hexdigest())


@pytest.mark.parametrize("page", ["", ".diff", ".patch", "/", "/files"])
def test_any_page_of_a_pull_request_means_its_diff(page: str) -> None:
    pull = "https://github.com/vllm-project/vllm/pull/41752"
    assert _diff_address(pull + page) == f"{pull}.diff"
    assert _id_of(pull + page) == "pr-41752"


def test_the_command_line_says_where_it_is_from_and_what_was_left_out(
    file: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["patch", "import", str(file), "--release", "0.20.0", "--patches", str(folder)]
    assert run(words) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(folder / "fix-value")
    assert "left out, because it is not in vllm/**/*.py: tests/test_core.py" in printed.err
    assert "tried on vllm 0.20.0: it applies" in printed.err
    assert "unreviewed" in printed.err
    assert run([*words, "--id", "again", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["ok"], found["patch"], found["dropped"]) == (
        1,
        True,
        "again",
        ["tests/test_core.py"],
    )
    assert run([*words, "--date", "today", "--id", "more"]) == 2
    assert "--date 'today' must be like" in capsys.readouterr().err
