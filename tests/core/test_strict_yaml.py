"""The YAML reader: what it takes, what it refuses, and that every finding has a line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.core.errors import ProfileError
from gemmaspec.core.strict_yaml import parse


def test_versions_and_words_stay_text() -> None:
    document = parse("a: 1.10\nb: 0.20\nc: NO\nd: 12:30:45\ne: 1e3\nf: 2026-04-01", file="p.yaml")
    assert document.data == {
        "a": "1.10",
        "b": "0.20",
        "c": "NO",
        "d": "12:30:45",
        "e": "1e3",
        "f": "2026-04-01",
    }


def test_integers_booleans_and_null_are_what_they_look_like() -> None:
    document = parse("a: 10\nb: -3\nc: true\nd: false\ne: null\nf: ~\ng:\nh: '10'\ni: 010", file="p.yaml")
    assert document.data == {
        "a": 10,
        "b": -3,
        "c": True,
        "d": False,
        "e": None,
        "f": None,
        "g": None,
        "h": "10",
        "i": "010",
    }


def test_every_key_and_item_has_its_line() -> None:
    document = parse("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n", file="p.yaml")
    lines = {path: place.line for path, place in document.places.items()}
    assert lines == {
        (): 1,
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 3,
        ("a", "c", 0): 4,
        ("a", "c", 1): 5,
        ("a", "c", 1, "y"): 5,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("a: 1\nb: 2\na: 3", "p.yaml:3: duplicate key 'a'; the first one is in line 1", id="duplicate key"),
        pytest.param(
            "a:\n  b: 1\n  b: 1", "p.yaml:3: duplicate key 'b'; the first one is in line 2", id="nested duplicate"
        ),
        pytest.param("a: &x 1\nb: *x", "p.yaml:2: aliases are not supported", id="alias"),
        pytest.param(
            "a: !!python/object:os.system ls",
            "the tag tag:yaml.org,2002:python/object:os.system",
            id="object",
        ),
        pytest.param("a: !!int 3", "p.yaml:1: the tag tag:yaml.org,2002:int is not supported", id="tag"),
        pytest.param("a: [1\nb: 2", "p.yaml:1: the [ that opens in this line is not closed", id="not closed"),
        pytest.param("a: 1\n\tb: 2", "p.yaml:2", id="tab"),
        pytest.param("? [a, b]\n: 1", "p.yaml:1: a key must be a word", id="list as key"),
        pytest.param("a: 1\n---\nb: 2", "p.yaml:2", id="two documents"),
        pytest.param("a: " + "[" * 30 + "]" * 30, "nested more than 20 levels deep", id="deep"),
        pytest.param("a: " + "[" * 100_000, "p.yaml", id="very deep"),
        pytest.param("a: \x00", "p.yaml", id="control character"),
        pytest.param("x" * 1_000_001, "larger than", id="huge"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse(text, file="p.yaml")
    assert said in caught.value.message


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    try:
        parse(text, file="p.yaml")
    except ProfileError as error:
        assert error.message.startswith("p.yaml")
