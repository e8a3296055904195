"""The writer of minimal diffs: what it writes, applied, is the wanted file, and shows that it is in."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmaspec.core.errors import PatchError
from gemmaspec.core.launcher import launch
from gemmaspec.core.patching.diff import parse_diff
from gemmaspec.core.patching.minimal import FileDiff, minimal_diff

PATH = "vllm/m.py"
LOOK_ALIKES = (
    ["try:", "    a = merge(x)", "except AssertionError:", "    return False"],
    ["if x:", "    a = x", "    return a"],
    ["a = x"],
    ["# a note", ""],
    ["for x in y:", "    a = merge(x)"],
)


@st.composite
def functions(draw: st.DrawFn) -> list[str]:
    """A function, or a class of two, made of few different blocks; names come up again."""
    blocks = draw(st.lists(st.sampled_from(LOOK_ALIKES), min_size=1, max_size=4))
    body = [f"    {line}".rstrip() for block in blocks for line in block] + ["    return x"]
    head = draw(st.sampled_from([["def f(x, y):"], ["@cache", "def g(x, y):"], ["async def h(x, y):"]]))
    if not draw(st.booleans()):
        return [*head, *body, ""]
    method = [f"    {line}".rstrip() for line in [*head, *body]]
    return ["class C:", *method, *(method if draw(st.booleans()) else []), ""]


@st.composite
def files(draw: st.DrawFn) -> list[str]:
    """The lines of a module."""
    parts = draw(st.lists(functions(), min_size=1, max_size=4))
    return ["import os", "", *(line for part in parts for line in part), "a = 1"]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A module before and after a few edits; each ends in a line ending of its own choice."""
    old = draw(files())
    new = list(old)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(new) - 1))
        indent = new[at][: len(new[at]) - len(new[at].lstrip())]
        added = draw(st.sampled_from([["a = x"], ["return x"], ["# a note"], ["b = 2", "a = x"], ["", "x = y"]]))
        edit = [f"{indent}{line}" if line else "" for line in added]
        simple = new[at].strip() in ("a = x", "return x", "a = 1", "return a", "return False", "# a note")
        if simple and draw(st.booleans()):
            new[at : at + 1] = edit
        else:
            new[at:at] = edit
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    tail = ending if draw(st.booleans()) else ""
    mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return tuple(mark + (ending.join(lines) + tail).encode() for lines in (old, new))  # type: ignore[return-value]


def reverse(diff: FileDiff) -> launch.FileEdit:
    hunks = tuple(dataclasses.replace(hunk, old=hunk.new, new=hunk.old) for hunk in diff.edit.hunks)
    return dataclasses.replace(diff.edit, hunks=hunks)


@settings(max_examples=150, deadline=None)
@given(pairs())
def test_what_is_written_applied_gives_the_new_file_and_backwards_the_old_one(pair: tuple[bytes, bytes]) -> None:
    old, new = pair
    try:
        launch.quietly(compile, new, PATH, "exec", 0, True)
        diff = minimal_diff(PATH, old, new)
    except (SyntaxError, PatchError) as error:
        assert isinstance(error, SyntaxError) or "not valid Python" in str(error) or old == new
        return
    done = launch.decide_file(diff.edit, old)
    assert (done.state, done.after) == ("applies", new)
    assert launch.decide_file(diff.edit, new).state == "applied"
    assert launch.decide_file(reverse(diff), new).after == old


@settings(max_examples=80, deadline=None)
@given(pairs())
def test_the_text_is_a_diff_that_reads_back_as_the_same_hunks(pair: tuple[bytes, bytes]) -> None:
    try:
        diff = minimal_diff(PATH, *pair)
    except PatchError:
        return
    (read,) = parse_diff(diff.text, "x.diff")
    assert read.path == PATH
    assert [(hunk.line, hunk.old, hunk.new) for hunk in read.hunks] == [
        (hunk.line, hunk.old, hunk.new) for hunk in diff.edit.hunks
    ]


@settings(max_examples=80, deadline=None)
@given(pairs())
def test_no_outer_line_of_context_can_be_left_out(pair: tuple[bytes, bytes]) -> None:
    old, new = pair
    try:
        diff = minimal_diff(PATH, old, new)
    except PatchError:
        return
    for index, hunk in enumerate(diff.edit.hunks):
        for shorter in without_a_line(hunk, diff.text):
            hunks = (*diff.edit.hunks[:index], shorter, *diff.edit.hunks[index + 1 :])
            edit = dataclasses.replace(diff.edit, hunks=hunks)
            told_apart = launch.decide_file(edit, old).after == new
            assert not (told_apart and launch.decide_file(edit, new).state == "applied"), diff.text


def without_a_line(hunk: launch.Hunk, text: str) -> list[launch.Hunk]:
    """The hunk without its first line, and without its last, where that is context."""
    body = text.split(f"@@ -{hunk.line}", 1)[1].split("\n@@", 1)[0].splitlines()[1:]
    found = []
    if len(hunk.old) in range(2, 9):  # beyond, both sides grow alike
        if body[0].startswith(" "):
            found.append(dataclasses.replace(hunk, line=hunk.line + 1, old=hunk.old[1:], new=hunk.new[1:]))
        if body[-1].startswith(" "):
            found.append(dataclasses.replace(hunk, old=hunk.old[:-1], new=hunk.new[:-1]))
    return found


TWICE = """\
class Planner:
    def plan(self):
        try:
            merge()
        except AssertionError:
            return False

    def other(self):
        try:
            merge()
        except AssertionError:
            return False
"""


def test_a_look_alike_in_another_function_costs_no_context() -> None:
    new = TWICE[::-1].replace("rorrEnoitressA", "rorrEeulaV", 1)[::-1]
    diff = minimal_diff(PATH, TWICE.encode(), new.encode())
    assert diff.scopes == ("Planner.other",)
    assert diff.text == (
        f"--- a/{PATH}\n+++ b/{PATH}\n@@ -11 +11 @@\n-        except AssertionError:\n+        except ValueError:\n"
    )


def test_an_insertion_is_found_by_the_line_above() -> None:
    diff = minimal_diff(PATH, b"def f():\n    a = 1\n    b = 2\n", b"def f():\n    a = 1\n    c = 3\n    b = 2\n")
    assert diff.text.endswith("@@ -2 +2,2 @@\n     a = 1\n+    c = 3\n")


def test_a_function_that_is_defined_twice_is_told_apart_by_context_or_the_scope_around_it() -> None:
    old = "if x:\n    def f():\n        return 1\nelse:\n    def f():\n        return 1\n"
    new = "if x:\n    def f():\n        return 1\nelse:\n    def f():\n        return 2\n"
    diff = minimal_diff(PATH, old.encode(), new.encode())
    assert launch.decide_file(diff.edit, old.encode()).after == new.encode()
    assert diff.scopes == ("",)
    assert diff.edit.hunks[0].old == ("else:", "    def f():", "        return 1")


def test_lines_taken_away_around_a_line_that_stays_keep_context_on_both_sides() -> None:
    """The line between them is in the old file too, so it does not show that they are gone."""
    old = b"from m import (\n    A,\n    B,\n    C,\n    D,\n    E,\n)\n"
    diff = minimal_diff(PATH, old, old.replace(b"    B,\n", b"").replace(b"    D,\n", b""))
    assert diff.text.splitlines()[2:] == ["@@ -2,5 +2,3 @@", "     A,", "-    B,", "     C,", "-    D,", "     E,"]
    assert [(hunk.old, hunk.new) for file in parse_diff(diff.text, "x") for hunk in file.hunks] == [
        (hunk.old, hunk.new) for hunk in diff.edit.hunks
    ]


def test_lines_taken_away_join_a_change_nearby() -> None:
    old, new = "def f():\n    a = 1\n    b = 2\n    c = 3\n", "def f():\n    b = 2\n    c = 4\n"
    diff = minimal_diff(PATH, old.encode(), new.encode())
    assert [hunk.old for hunk in diff.edit.hunks] == [("    a = 1", "    b = 2", "    c = 3")]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a = 1\n", "a = 1\n", "no line was changed"),
        ("a = 1\nb = 2\n", "a = 1\n", "vllm/m.py:2: this change cannot be detected once applied"),
        ("a = 1\nb = 2\n", "a = 1\r\nb = 2\r\n", "only line endings"),
        ("a = 1\nb = 2\n", "a = 1\r\nb = 3\r\n", "line endings, the encoding or the newline at the end"),
        ("a = 1\nb = 2\n", "a = 1\nb = 3", "the newline at the end"),
        ("a = 1\n", "a =\n", "not valid Python"),
        ("a = 1\n", "a = '\0'\n", "not valid Python"),
        ("", "a = 1\n", "is empty"),
        ("a = 1\n", "", "is empty"),
    ],
)
def test_what_no_patch_can_say_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(PatchError, match=r"vllm/m\.py") as caught:
        minimal_diff(PATH, old.encode(), new.encode())
    assert said in caught.value.message


def test_a_large_file_is_no_matter() -> None:
    """8,000 lines; the longest file of vLLM 0.32.0 has 7,255."""
    lines = [f"def f{n}(x):\n    if x:\n        return None\n    return {n % 7}\n" for n in range(2000)]
    new = [*lines]
    for n in (5, 1000, 1999):
        new[n] = new[n].replace("return None", "return ValueError")
    diff = minimal_diff(PATH, "".join(lines).encode(), "".join(new).encode())
    assert diff.scopes == ("f5", "f1000", "f1999")
    assert all(len(hunk.old) == 1 for hunk in diff.edit.hunks)
