"""Whether a value is taken: the notation of values.py, asked in each of its forms."""

from __future__ import annotations

import pytest

from gemmaspec.core.releases.values import refused, refused_value

CONFIGS = {
    "C": {
        "mode": "^NONE|#3|None",
        "share": "float>0<=1",
        "on": "bool|None",
        "kind": "=a|=b",
        "sizes": "[int]",
        "d": "@D",
    },
    "D": {"*": "any", "n": "int"},
}


@pytest.mark.parametrize(
    ("word", "form"),
    [
        ("5", "int"), ("-1", "int>=-1"), (" 7 ", "int"), ("1_000", "int"), ("2k", "readable"), ("1.5k", "readable"),
        ("auto", "length"), ("-1", "length>=-1"), ("0.5", "float>0<=1"), ("1e-3", "float"), ("None", "?int"), ("", "?int"),
        ("[1]", "json"), ("{}", "{}"), ("0.7", "?version"), ("None", "?version"), ("x", "text or {}"), ('{"a": 1}', "text or {}"), ("anything", ""), ("", ""),
        ('{"mode": "none", "on": "yes", "share": "1", "sizes": [1, "2"], "kind": "b", "d": {"more": 1, "n": 2}}', "@C"),
        ('{"mode": null, "on": 1}', "@C"), ('{"d": {"n": 80m}}', "@C"), ('{"any": 1}', "@Unknown"),
    ],
)  # fmt: skip
def test_what_is_taken(word: str, form: str) -> None:
    assert refused(word, form, CONFIGS) is None


@pytest.mark.parametrize(
    ("word", "form", "said"),
    [
        ("x", "int", "is not a whole number"),
        ("1.5", "int", "is not a whole number"),
        ("2k", "int", "is not a whole number"),
        ("1.5K", "readable", "is not a whole number, also as 2k"),
        ("0", "int>=1", "must be at least 1"),
        ("90", "float>0<=1", "may be at most 1"),
        ("0", "float>0<=1", "must be more than 0"),
        ("1", "float<1", "must be less than 1"),
        ("None", "int", "is not a whole number"),
        ("{bad", "{}", "is not valid JSON"),
        ("{bad", "?version", "is not a version"),
        ("{bad}", "text or {}", "is not valid JSON"),
        ("[1]", "{}", "is not a JSON object"),
        ('{"level": 3}', "@C", "has no key 'level': C has d, kind, mode, on, share, sizes"),
        ('{"mode": 7}', "@C", "mode: takes NONE, 3, null"),
        ('{"mode": "full"}', "@C", "mode: takes NONE, 3, null"),
        ('{"share": 2}', "@C", "share: may be at most 1"),
        ('{"on": "maybe"}', "@C", "on: takes true or false, null"),
        ('{"sizes": ["x"]}', "@C", "sizes: takes a whole number"),
        ('{"d": {"n": "x"}}', "@C", "d: n: takes a whole number"),
        ('{"d": 1}', "@C", "d: takes D"),
    ],
)
def test_what_is_refused_and_why(word: str, form: str, said: str) -> None:
    assert refused(word, form, CONFIGS) == said


def test_a_value_of_an_unknown_kind_is_taken() -> None:
    assert refused_value(object(), "any", {}) is None
    assert refused_value(3, "somewhat", {}) is None
