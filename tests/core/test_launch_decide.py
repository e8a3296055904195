"""How a patch decides: states, scopes, line endings, encodings, versions. Pure functions of the launcher."""

from __future__ import annotations

import difflib
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gemmaspec.core.launcher import launch
from gemmaspec.core.launcher.launch import FileEdit, FileResult, Hunk, Patch, PatchResult, Rule, Variant
from gemmaspec.core.patching.diff import parse_diff
from tests.support.launching import tree_of_function

PATH = "vllm/a.py"
ONE = Hunk("f", 2, ("    return 1",), ("    return 2",))
TREE = "def f():\n    return 1\n\n\ndef g():\n    return 1\n"


def decide(source: str | bytes, *hunks: Hunk) -> FileResult:
    data = source.encode() if isinstance(source, str) else source
    return launch.decide_file(FileEdit(PATH, hunks), data)


def apply(source: bytes, *hunks: Hunk) -> bytes:
    result = decide(source, *hunks)
    assert result.state == "applies", result
    assert result.after is not None
    return result.after


def reversed_(hunk: Hunk) -> Hunk:
    return replace(hunk, old=hunk.new, new=hunk.old)


def patch(*variants: Variant, rules: tuple[Rule, ...] = ()) -> Patch:
    return Patch("p", "t", True, "any", rules, variants)


def variant(*hunks: Hunk, specifier: str = ">=0.19", path: str = PATH) -> Variant:
    return Variant("v" + specifier, specifier, (FileEdit(path, hunks),))


def decided(given_: Patch, tree: dict[str, str], version: str = "0.32.0") -> PatchResult:
    files = {path: text.encode() for path, text in tree.items()}
    return launch.decide_patch(given_, version, files.get)


def test_a_hunk_is_found_inside_its_function_though_another_looks_alike() -> None:
    assert apply(TREE.encode(), ONE) == TREE.replace("return 1", "return 2", 1).encode()
    assert apply(TREE.encode(), replace(ONE, scope="g")) == b"def f():\n    return 1\n\n\ndef g():\n    return 2\n"


def test_without_a_scope_a_look_alike_makes_it_ambiguous() -> None:
    result = decide(TREE, replace(ONE, scope=""))
    assert (result.state, result.detail) == ("ambiguous", "the old lines occur 2 times in the file: lines 2, 6")


def test_it_is_found_at_any_distance() -> None:
    assert decide("x = 0\n" * 500 + TREE, ONE).line == 502


def test_a_single_changed_blank_is_a_conflict() -> None:
    for found in ("    return  1", "    return 1 ", "\treturn 1", "    return 1  # now with a comment"):
        result = decide(f"def f():\n{found}\n", ONE)
        assert (result.state, result.expected, result.found) == ("conflict", ONE.old, (found,))


def test_the_new_lines_and_none_of_the_old_mean_applied() -> None:
    result = decide(TREE.replace("return 1", "return 2", 1), ONE)
    assert result.state == "applied"
    assert result.before == result.after


def test_applied_elsewhere_is_not_applied_here() -> None:
    assert decide(TREE.replace("return 1", "return 2").replace("return 2", "return 1", 1), ONE).state == "applies"


def test_old_lines_that_are_part_of_the_new_ones_do_not_confuse() -> None:
    insertion = Hunk("f", 2, ("    a()",), ("    a()", "    b()"))
    before, after = "def f():\n    a()\n", "def f():\n    a()\n    b()\n"
    assert decide(before, insertion).state == "applies"
    assert decide(after, insertion).state == "applied"
    assert decide("def f():\n    a()\n    a()\n    b()\n", insertion).state == "ambiguous"
    assert apply(after.encode(), reversed_(insertion)) == before.encode()
    assert decide(before, reversed_(insertion)).state == "applied"


def test_an_insertion_before_its_context_does_not_confuse() -> None:
    insertion = Hunk("f", 2, ("    a()",), ("    b()", "    a()"))
    assert decide("def f():\n    b()\n    a()\n", insertion).state == "applied"
    assert decide("def f():\n    a()\n", insertion).state == "applies"
    assert decide("def f():\n    a()\n    b()\n    a()\n", insertion).state == "ambiguous"


def test_a_second_copy_of_the_new_lines_is_a_conflict() -> None:
    assert decide("def f():\n    return 2\n    return 2\n", ONE).state == "conflict"


def test_one_hunk_in_and_one_not_is_a_conflict_that_says_so() -> None:
    two = replace(ONE, scope="g")
    result = decide(TREE.replace("return 1", "return 2", 1), ONE, two)
    assert result.state == "conflict"
    assert result.detail == "the file already has 1 of 2 hunks, but not the others"


def test_hunks_that_fall_on_the_same_lines_are_a_conflict() -> None:
    first = Hunk("", 1, ("a = 1", "b = 1"), ("a = 2", "b = 2"))
    second = Hunk("", 2, ("b = 1", "c = 1"), ("b = 3", "c = 3"))
    result = decide("a = 1\nb = 1\nc = 1\n", first, second)
    assert result.state == "conflict"
    assert "two hunks overlap" in result.detail


def test_a_result_that_python_does_not_compile_is_a_conflict() -> None:
    for new in ("    return (", "    nonlocal x", "return 1"):
        result = decide(TREE, replace(ONE, new=(new,)))
        assert result.state == "conflict"
        assert result.detail.startswith("the patched file would be invalid: ")
        assert result.after is None


def test_future_statements_of_the_launcher_do_not_leak_into_the_check() -> None:
    hunk = Hunk("", 1, ("x: int = 1",), ("x: (yield) = 1",))
    assert decide("x: int = 1\n", hunk).state == "conflict"


def test_a_file_that_is_no_python_is_a_conflict_not_a_crash() -> None:
    for source in (
        b"def f(:\n",
        b"\xff\xfe\x00",
        b"# coding: no-such-codec\n",
        b"x = 1\x00\n",
        b"(" * 100_000,
    ):
        assert decide(source, ONE).state == "conflict"


def test_a_missing_file_is_missing() -> None:
    assert launch.decide_file(FileEdit(PATH, (ONE,)), None).state == "missing"


def test_a_missing_function_is_a_conflict_that_says_so() -> None:
    assert decide("x = 1\n", ONE).detail == "the file does not define f"


@pytest.mark.parametrize("source", [
    "class C:\n    def m(self):\n        return 1\n",
    "class C:\n    @decorator\n    async def m(self):\n        return 1\n",
    "if X:\n    class C:\n        if Y:\n            def m(self):\n                return 1\n",
    "try:\n    pass\nexcept E:\n    class C:\n        def m(self):\n            return 1\n",
    "class C:\n    def other(self):\n        return 1\n    def m(self):\n        return 1\n",
    "def m():\n    return 1\nclass C:\n    def m(self):\n        return 1\n",
    "match x:\n    case 1:\n        class C:\n            def m(self):\n                return 1\n",
])  # fmt: skip
def test_a_method_is_found_by_its_qualified_name_wherever_it_is_defined(source: str) -> None:
    indent = source.rpartition("\n        ")[2].count(" ")
    line = source.splitlines()[-1]
    result = decide(source, Hunk("C.m", 1, (line,), (line.replace("1", "2"),)))
    assert result.state == "applies", indent
    assert result.line == len(source.splitlines())


def test_a_function_inside_a_function_is_not_its_method() -> None:
    source = "class C:\n    def f(self):\n        def m():\n            return 1\n"
    assert decide(source, Hunk("C.m", 1, ("            return 1",), ("            return 2",))).state == "conflict"
    assert decide(source, Hunk("C.f.m", 1, ("            return 1",), ("            return 2",))).state == "applies"


def test_a_function_that_is_defined_twice_is_searched_twice() -> None:
    twice = "if X:\n    def f():\n        return 1\nelse:\n    def f():\n        return 3\n"
    assert decide(twice, Hunk("f", 1, ("        return 1",), ("        return 2",))).state == "applies"
    assert (
        decide(twice.replace("3", "1"), Hunk("f", 1, ("        return 1",), ("        return 2",))).state == "ambiguous"
    )


@pytest.mark.parametrize(("before", "after"), [
    (b"def f():\r\n    return 1\r\n", b"def f():\r\n    return 2\r\n"),
    (b"def f():\n    return 1", b"def f():\n    return 2"),
    (b"def f():\r\n    return 1", b"def f():\r\n    return 2"),
    (b"\xef\xbb\xbfdef f():\n    return 1\n", b"\xef\xbb\xbfdef f():\n    return 2\n"),
    (b"\x0c\ndef f():\n    return 1\n\x0c\n", b"\x0c\ndef f():\n    return 2\n\x0c\n"),
    (b"x = 1\r\ndef f():\n    return 1\n", b"x = 1\r\ndef f():\n    return 2\n"),
    (b"def f():\n    '\x0c \xc2\x85 \xe2\x80\xa8'\n    return 1\n", b"def f():\n    '\x0c \xc2\x85 \xe2\x80\xa8'\n    return 2\n"),
    (b"# coding: latin-1\ndef f():\n    '\xe9'\n    return 1\n", b"# coding: latin-1\ndef f():\n    '\xe9'\n    return 2\n"),
    (b"def f():\r    return 1\r", b"def f():\r    return 2\r"),
])  # fmt: skip
def test_every_byte_that_is_not_patched_stays(before: bytes, after: bytes) -> None:
    assert apply(before, ONE) == after
    assert apply(after, reversed_(ONE)) == before


def test_lines_are_compared_in_the_encoding_of_the_file() -> None:
    hunk = Hunk("", 2, ("x = 'é'",), ("x = 'éé'",))
    assert apply(b"# coding: latin-1\nx = '\xe9'\n", hunk) == b"# coding: latin-1\nx = '\xe9\xe9'\n"
    assert decide(b"# coding: ascii\nx = 1\n", hunk).state == "conflict"


def test_added_lines_take_the_ending_of_the_lines_they_replace() -> None:
    grow = Hunk("f", 2, ("    return 1",), ("    x = 1", "    return x"))
    assert apply(b"def f():\r\n    return 1\r\n", grow) == b"def f():\r\n    x = 1\r\n    return x\r\n"
    assert apply(b"def f():\n    return 1", grow) == b"def f():\n    x = 1\n    return x"


def test_mixed_line_endings_inside_a_hunk_are_not_guessed_about() -> None:
    hunk = Hunk("", 1, ("a = 1", "b = 1"), ("a = 2", "b = 2"))
    assert "mixed line endings" in decide(b"a = 1\r\nb = 1\n", hunk).detail


# whole patches


def test_a_patch_outside_its_releases_is_not_needed() -> None:
    result = decided(patch(variant(ONE, specifier=">=0.19,<0.21")), {PATH: TREE}, "0.21.0")
    assert (result.state, result.files) == ("not-needed", ())


OLD, NEW = variant(ONE, specifier=">=0.19,<0.33"), variant(ONE, specifier=">=0.33", path="vllm/b.py")


@pytest.mark.parametrize(("version", "tried"), [
    ("0.18.1", []), ("0.19.0", [OLD]), ("0.19", [OLD]), ("0.32.0", [OLD]), ("0.32.99", [OLD]), ("0.33.0", [NEW]),
    ("0.33", [NEW]), ("0.33.0.post1", [NEW]), ("1.0.0", [NEW]), ("0.32.0+cpu", [OLD]), ("0.32.0+cu129", [OLD]),
    ("0.33.0rc1", [OLD, NEW]), ("0.33.0.dev0", [OLD, NEW]), ("0.33.1.dev45+gabc1234", [OLD, NEW]),
    ("0.32.0+g2a69949bd", [OLD, NEW]), ("0.32.0+ours", [OLD, NEW]), ("unknown", [OLD, NEW]), ("dev", [OLD, NEW]),
    ("", [OLD, NEW]), ("9" * 50, [OLD, NEW]), ("0.32.0\n", [OLD, NEW]),
])  # fmt: skip
def test_a_release_chooses_one_variant_and_any_other_build_tries_all(version: str, tried: list[Variant]) -> None:
    assert list(launch.candidates(patch(OLD, NEW), version)) == tried


def test_an_unreleased_build_is_decided_by_content() -> None:
    both = patch(OLD, NEW)
    assert decided(both, {PATH: TREE}, "0.33.1.dev45+gabc").variant == OLD.name
    assert decided(both, {"vllm/b.py": TREE}, "0.33.1.dev45+gabc").variant == NEW.name
    assert decided(both, {}, "0.33.1.dev45+gabc").state == "missing"
    changed = decided(both, {"vllm/b.py": TREE.replace("1", "7")}, "0.33.1.dev45+gabc")
    assert (changed.state, changed.variant) == ("conflict", NEW.name)


def test_a_release_is_not_rescued_by_the_variant_of_another() -> None:
    assert decided(patch(OLD, NEW), {"vllm/b.py": TREE}, "0.32.0").state == "missing"


def test_a_future_release_is_decided_by_content_never_silently_left_out() -> None:
    assert decided(patch(OLD, NEW), {"vllm/b.py": TREE}, "7.0.0").state == "drifted"
    assert decided(patch(OLD, NEW), {"vllm/b.py": "def f():\n    return 9\n"}, "7.0.0").state == "conflict"


def test_applied_in_a_later_variant_goes_before_superseded() -> None:
    rule = Rule("vllm/b.py", "f", release="0.33.1", tree=tree_of_function(TREE.replace("1", "2", 1), "f"))
    result = decided(patch(OLD, NEW, rules=(rule,)), {"vllm/b.py": TREE.replace("1", "2", 1)}, "unknown")
    assert (result.state, result.variant) == ("applied", NEW.name)


def test_a_rule_about_a_file_that_is_gone_or_broken_never_matches() -> None:
    digest = "0123456789abcdef"
    gone = patch(
        variant(ONE), rules=(Rule("vllm/gone.py", "f", "0.34.0", digest), Rule("vllm/broken.py", "f", "0.35.0", digest))
    )
    assert decided(gone, {PATH: TREE, "vllm/broken.py": "x ="}).state == "drifted"


def test_all_files_of_a_patch_must_agree() -> None:
    both = Variant("v", ">=0.19", (FileEdit(PATH, (ONE,)), FileEdit("vllm/b.py", (ONE,))))
    result = decided(patch(both), {PATH: TREE, "vllm/b.py": TREE.replace("1", "2", 1)})
    assert result.state == "conflict"
    assert [file.state for file in result.files] == ["applies", "conflict"]
    assert "already has the patch, but another file of the patch does not" in result.files[1].detail


# the second start, in general


NAMES = st.sampled_from(["alpha", "beta", "gamma"])
LINES = st.lists(st.sampled_from(["x = 1", "y = 2", "", "call(x)", "call(y)  # é", "if x: y = 1"]), max_size=6)
ENDINGS = st.sampled_from(["\n", "\r\n"])


@st.composite
def modules(draw: st.DrawFn) -> list[str]:
    """Lines of a Python file in which functions look alike."""
    lines: list[str] = draw(LINES)
    for name in draw(st.lists(NAMES, unique=True, max_size=3)):
        body = [f"    {line}" if line else "" for line in draw(LINES)]
        lines += ["", f"def {name}():", *body, "    return 0"]
    return ["start = 0", *lines, "end = 0"]


@given(modules(), modules(), st.integers(0, 3), ENDINGS, st.booleans())
@settings(max_examples=200, deadline=None)
def test_applying_the_diff_of_two_files_to_one_gives_the_other_and_back(
    before: list[str], after: list[str], context: int, end: str, last: bool
) -> None:
    hunks = hunks_between(before, after, context)
    assume(hunks)
    source, wanted = written(before, end, last=last), written(after, end, last=last)
    result = decide(source, *hunks)
    if result.state == "applies":
        assert result.after == wanted
    elif all(copies(before, hunk.old) == 1 and not copies(before, hunk.new) for hunk in hunks):
        assert "would be invalid" in result.detail
    back = decide(wanted, *map(reversed_, hunks))
    if back.state == "applies":
        assert back.after == source
    else:
        assert not all(copies(after, hunk.new) == 1 and not copies(after, hunk.old) for hunk in hunks)


@given(modules(), st.integers(0, 100), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_a_marked_line_put_in_anywhere_is_recognised_and_taken_out_again(
    lines: list[str], seed: int, context: int
) -> None:
    at = seed % (len(lines) + 1)
    indent = "    " if at < len(lines) and lines[at].startswith("    ") else ""
    hunks = hunks_between(lines, [*lines[:at], f"{indent}mark = 'ours'", *lines[at:]], context)
    assume(hunks)
    source = written(lines, "\n", last=True)
    result = decide(source, *hunks)
    if result.state != "applies":
        assert result.state == "ambiguous" or "would be invalid" in result.detail
        return
    assert result.after is not None
    assert decide(result.after, *hunks).state == "applied"
    assert apply(result.after, *map(reversed_, hunks)) == source


def hunks_between(before: list[str], after: list[str], context: int) -> tuple[Hunk, ...]:
    """The hunks of a unified diff, as the host reads it; none when a hunk would have no old or new lines."""
    old, new = [f"{line}\n" for line in before], [f"{line}\n" for line in after]
    text = "".join(difflib.unified_diff(old, new, "a/" + PATH, "b/" + PATH, n=context))
    try:
        (file,) = parse_diff(text, "x.diff")
    except Exception:
        return ()
    return tuple(Hunk("", hunk.line, hunk.old, hunk.new) for hunk in file.hunks)


def written(lines: list[str], end: str, *, last: bool) -> bytes:
    return (end.join(lines) + (end if last else "")).encode()


def copies(lines: list[str], block: tuple[str, ...]) -> int:
    return sum(tuple(lines[index : index + len(block)]) == block for index in range(len(lines)))


def test_a_line_where_two_definitions_touch_belongs_to_the_later_one() -> None:
    source = launch.Source(b"a = 1\nb = 2\n" * 2)
    known = [mark for _, mark in source.marks(0, 2)]
    assert launch.likeness(source, [(0, 2), (2, 4)], 2, -1, known[::-1]) == (0, 2)
    assert launch.likeness(source, [(0, 2), (2, 4)], 2, 1, known) == (2, 2)
