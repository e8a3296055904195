"""The list of ids that a draft may propose: chosen, written, read again, and refused where it is no list."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from gemmaspec.core.draft_ids import as_ranges, chosen, parsed, read
from gemmaspec.core.errors import ProfileError


def test_ranges_are_read_as_they_were_written() -> None:
    lot = random.Random(4)
    for size in (1, 2, 7, 400, 3000):
        ids = tuple(sorted(lot.sample(range(3072), size)))
        assert parsed(json.dumps({"ids": as_ranges(ids)})) == ids
    assert as_ranges((0, 1, 2, 5, 9, 10)) == "0-2,5,9-10"


def test_the_most_frequent_come_first_and_then_the_lowest() -> None:
    counts = {900: 5, 70: 1, 800: 3, 5000: 9}
    assert chosen(counts, vocabulary=1000, most=2) == (800, 900)
    assert chosen(counts, vocabulary=1000, most=6) == (0, 1, 2, 70, 800, 900)
    assert chosen({}, vocabulary=4, most=9) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", 'it has no "ids"'),
        ('{"ids": [1, 2]}', 'it has no "ids"'),
        ('{"ids": ""}', 'it has no "ids"'),
        ('{"ids": "1,,2"}', "'' is not a range"),
        ('{"ids": "1-2-3"}', "'1-2-3' is not a range"),
        ('{"ids": "-3"}', "'-3' is not a range"),
        ('{"ids": "٣"}', "is not a range"),
        ('{"ids": "5-2"}', "the range 5-2 is not above"),
        ('{"ids": "1-4,4"}', "the range 4 is not above"),
        ('{"ids": "0-9999999"}', "reaches 4,194,304"),
        ('{"ids": "0-99999999999999"}', "is not a range"),
    ],
)
def test_what_is_no_list_is_refused_with_the_reason(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r".") as told:
        parsed(text)
    assert why in str(told.value)
    file = tmp_path / "ids.json"
    file.write_text(text)
    with pytest.raises(ProfileError, match=r"draft\.ids: ") as refused:
        read(str(file))
    assert str(file) in refused.value.message
    assert refused.value.hint == "gemmaspec bench PROFILE --save-ids FILE writes one"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="there is no such file"):
        read(str(tmp_path / "none.json"))
    with pytest.raises(ProfileError, match="a folder"):
        read(str(tmp_path))
    (tmp_path / "latin.json").write_bytes(b'{"ids": "\xe9"}')
    with pytest.raises(ProfileError, match="not UTF-8"):
        read(str(tmp_path / "latin.json"))
