"""Runs of releases, written and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.core.releases import spans

ALL = ("0.19.0", "0.19.1", "0.20.0", "0.21.0", "0.22.0")


@pytest.mark.parametrize(
    ("has", "text", "words"),
    [
        (ALL, "0.19.0-", "in all releases from 0.19.0 on"),
        (ALL[1:], "0.19.1-", "from 0.19.1 on"),
        (ALL[:3], "0.19.0-0.20.0", "up to 0.20.0"),
        (ALL[1:3], "0.19.1-0.20.0", "from 0.19.1 to 0.20.0"),
        (ALL[2:3], "0.20.0", "in 0.20.0 only"),
        (ALL[-1:], "0.22.0-", "from 0.22.0 on"),
        ((ALL[0], ALL[2], ALL[4]), "0.19.0, 0.20.0, 0.22.0-", "in 0.19.0 only and in 0.20.0 only and from 0.22.0 on"),
        ((), "", "in no release from 0.19.0 to 0.22.0"),
    ],
)
def test_a_run_is_written_with_its_ends(has: tuple[str, ...], text: str, words: str) -> None:
    assert spans.write(has, ALL) == text
    assert spans.read(text, ALL) == frozenset(has)
    assert spans.words(text, ALL) == words


@given(st.sets(st.sampled_from(ALL)))
def test_what_was_written_is_read(has: set[str]) -> None:
    assert spans.read(spans.write(has, ALL), ALL) == has


def test_what_the_newest_release_has_is_written_the_same_when_one_more_has_it() -> None:
    longer = (*ALL, "0.23.0")
    assert spans.write(ALL[2:], ALL) == spans.write(longer[2:], longer)


@pytest.mark.parametrize("text", ["0.18.0-", "0.19.0-0.99.0", "all", "0.19.0,0.20.0"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        spans.read(text, ALL)
