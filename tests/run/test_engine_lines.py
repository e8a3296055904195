"""Hostile bytes become printable lines."""

from __future__ import annotations

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.run.engine.lines import MAX_LINE, clean, lines


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_where_the_bytes_are_cut_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    assert list(lines(pieces)) == list(lines([data]))


@given(st.one_of(st.text(), st.binary().map(lambda data: data.decode("latin-1"))))
def test_no_control_character_but_tab_is_left(text: str) -> None:
    cleaned = clean(text)
    assert all(unicodedata.category(character) != "Cc" or character == "\t" for character in cleaned)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x07", "link"),
        ("\x1b]52;c;cm0gLXJm\x07x", "x"),
        ("\x1b[2J\x1b[Hcleared", "cleared"),
        ("\x1bP+q544e\x1b\\x", "x"),
        ("\x9b31mx", "x"),
        ("safe\u202eexe.gpj", "safeexe.gpj"),
        ("a\tb\x08c\x07\x00", "a\tbc"),
        ("Gemma 4: é ✓", "Gemma 4: é ✓"),
        ("\x1b", ""),
    ],
)
def test_terminal_escapes_are_removed_and_text_stays(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_lines_end_at_any_line_end_and_an_unfinished_one_is_given() -> None:
    assert list(lines([b"a\nb\r\nc\rd\r", b"\ne\n\nf"])) == ["a", "b", "c", "d", "e", "", "f"]
    assert list(lines([])) == []


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    pieces = list(lines(b"x" * 5000 for _ in range(100)))
    assert sum(map(len, pieces)) == 500_000
    assert max(map(len, pieces)) <= MAX_LINE + 5000
