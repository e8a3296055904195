"""Whether vLLM takes a value: a word of its command line, or a value in a JSON configuration.

What is taken is written in a short notation, by tools/extraction/values.py. For a word: `int`, `readable` (2k too),
`length` (auto too), `float`, `version`, `json`, `{}` (a JSON object), `text or {}`, `@Class` (the keys of a class),
with bounds behind it; before it `?`: empty and None too, `+`: one word or more, `*`: any number of words. For a value
in JSON: alternatives with | between them, `=text`, `#3`, `^NAME` (in any case), `[int]`. pydantic converts as it does
by default: "5" is a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from packaging.version import InvalidVersion, Version

ANY: Final = "any"
"""Takes anything, or what is not known."""
_TERM: Final = re.compile(r"(\??)(\+?)([^<>]*)((?:[<>]=?[-0-9.e+]+)*)")
_BOUND: Final = re.compile(r"([<>]=?)([-0-9.e+]+)")
_INT: Final = re.compile(r"\s*[-+]?[0-9]+(_[0-9]+)*\s*")
_READABLE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)([kKmMgGtT])\s*")
_BARE_READABLE: Final = re.compile(r'("(?:[^"\\]|\\.)*")|\b\d+(?:\.\d+)?[kmgtKMGT]\b')
_TRUTHS: Final = frozenset({"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"})
_WORDS: Final = {
    "int": "a whole number",
    "exact": "a whole number without quotes",
    "readable": "a whole number, also as 2k",
    "length": "a whole number, also as 2k, or auto",
    "float": "a number",
    "{}": "a JSON object",
    "bool": "true or false",
    "str": "a text",
    "[]": "a list",
    "None": "null",
}
_MOST: Final = 12
"""Keys or choices that a message lists."""

Configs = Mapping[str, Mapping[str, str]]
"""Class → key → the form of its value; the key * stands for all others."""


def refused(word: str, takes: str, configs: Configs) -> str | None:
    """Return why vLLM does not take a word of its command line; None if it does, or if that is not known."""
    term = _TERM.fullmatch(takes)
    if not term or not takes or (term[1] and word in ("", "None")):
        return None
    kind, bounds = term[3], term[4]
    if kind in ("int", "readable", "length", "float"):
        return _number(word, kind, bounds)
    if kind == "text or {}":
        if re.fullmatch(r"(?s)\s*{.*}\s*", word):
            return _object(word, configs, "")
        return None
    if takes[0] == "^":
        names = [name[1:] for name in takes.split("|")]
        if word.upper() in names:
            return None
        return f"is none of {_listed(names)}"
    if kind == "version":
        if _is_version(word):
            return None
        return "is not a version"
    if kind == "json":
        if _is_json(word):
            return None
        return "is not valid JSON"
    if kind == "{}" or kind.startswith("@"):
        return _object(word, configs, kind.removeprefix("@").replace("{}", ""))
    return None


def _number(word: str, kind: str, bounds: str) -> str | None:
    if kind == "length" and word.strip().lower() in ("auto", "-1"):
        return None
    value: float | None = None
    if _INT.fullmatch(word):
        value = int(word)
    elif kind == "float":
        try:
            value = float(word)
        except ValueError:
            value = None
    elif kind in ("readable", "length") and (readable := _READABLE.fullmatch(word)):
        if readable[2].islower() or "." not in readable[1]:
            value = float(readable[1])
        else:
            value = None
    if value is None:
        return f"is not {_WORDS[kind]}"
    return _outside(value, bounds)


def _outside(value: float, bounds: str) -> str | None:
    """Return which bound a number violates."""
    for sign, text in _BOUND.findall(bounds):
        limit = float(text)
        kept = {">": value > limit, ">=": value >= limit, "<": value < limit, "<=": value <= limit}[sign]
        if not kept:
            than = {
                ">": "must be more than",
                ">=": "must be at least",
                "<": "must be less than",
                "<=": "may be at most",
            }
            return f"{than[sign]} {text}"
    return None


def _is_version(word: str) -> bool:
    try:
        Version(word)
    except InvalidVersion:
        return False
    return True


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return False
    return True


def _object(word: str, configs: Configs, name: str) -> str | None:
    try:
        value = json.loads(_BARE_READABLE.sub(lambda match: match[1] or "1", word))
    except (ValueError, RecursionError):
        return "is not valid JSON"
    if not isinstance(value, dict):
        return "is not a JSON object"
    return refused_keys(value, name, configs)


def refused_keys(value: Mapping[str, Any], name: str, configs: Configs) -> str | None:
    """Return the first key or value that a class does not take."""
    keys = configs.get(name)
    if keys is None:
        return None
    for key, inner in value.items():
        if key not in keys:
            if "*" in keys:
                continue
            return f"has no key {key[:60]!r}: {name} has {_listed(sorted(keys))}"
        if refusal := refused_value(inner, keys[key], configs):
            return f"{key}: {refusal}"
    return None


def refused_value(value: Any, takes: str, configs: Configs) -> str | None:
    """Return why a value in JSON is not taken; None if it is, or if that is not known."""
    choices = takes.split("|")
    refusals = [_alternative(value, choice, configs) for choice in choices]
    if None in refusals:
        return None
    for refusal in refusals:
        if refusal:
            return refusal
    return f"takes {_listed(list(map(_named, choices)))}"


def _alternative(value: Any, takes: str, configs: Configs) -> str | None:
    """Return None if this alternative takes a value, else why not; an empty text if it is of another kind."""
    if takes == ANY or (takes == "None" and value is None):
        return None
    if takes[0] in "=#":
        kind_of_it = str if takes[0] == "=" else int
        # type, because True is an int for isinstance
        if type(value) is kind_of_it and str(value) == takes[1:]:
            return None
        return ""
    if takes[0] == "^":
        if isinstance(value, str) and value.upper() == takes[1:].upper():
            return None
        return ""
    if takes[0] == "@":
        if isinstance(value, dict):
            return refused_keys(value, takes[1:], configs)
        return ""
    if takes[0] == "[":
        return _listing(value, takes[1:-1], configs)
    term = _TERM.fullmatch(takes)
    kind, bounds = (term[3], term[4]) if term else (takes, "")
    if kind in ("int", "exact", "float"):
        number = _as_number(value, kind)
        if number is None:
            return ""
        return _outside(number, bounds)
    fits = {"bool": _is_truth(value), "str": isinstance(value, str), "{}": isinstance(value, dict), "None": False}
    if fits.get(kind, True):
        return None
    return ""


def _listing(value: Any, inner: str, configs: Configs) -> str | None:
    if not isinstance(value, list):
        return ""
    for item in value if inner else ():
        if refusal := refused_value(item, inner, configs):
            return refusal
    return None


def _as_number(value: Any, kind: str) -> float | None:
    if isinstance(value, str) and kind != "exact":
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, int if kind == "exact" else int | float) or (kind == "int" and value != value // 1):
        return None
    return value


def _is_truth(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in _TRUTHS
    return value in (0, 1) and not isinstance(value, list | dict)


def _named(takes: str) -> str:
    if takes[0] in "=#^@":
        return takes[1:]
    return _WORDS.get(re.split("[<>]", takes)[0], takes)


def _listed(names: list[str]) -> str:
    if len(names) > _MOST:
        more = f" and {len(names) - _MOST} more"
    else:
        more = ""
    return ", ".join(names[:_MOST]) + more
