"""What a person reads: sizes, times, and pydantic's errors as sentences for who wrote the value. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final


def readable_size(nbytes: float) -> str:
    """Return bytes in the largest unit of a thousand that has a whole one: 19.30 GB, 4.47 MB, 786.43 kB, 64 B."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes:.0f} B"


def duration(seconds: float) -> str:
    """Return seconds as people say them: 45 s, 12 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{seconds / 3600:.1f} h"


_YES: Final = ("on", "yes", "y", "true", "1")
_NO: Final = ("off", "no", "n", "false", "0")


def sentence(error: Mapping[str, Any]) -> str:
    """Return the problem in words, without pydantic's names of types."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if worded := _SENTENCES.get(error["type"]):
        return worded(error)
    message = str(error["msg"]).removeprefix("Input ").removeprefix("input ")
    return f"{message.replace('should be', 'must be').replace('should have', 'must have')}{got(error)}"


def _boolean(error: Mapping[str, Any]) -> str:
    word = str(error["input"]).lower()
    meant = ""
    if word in _YES:
        meant = "; write true"
    elif word in _NO:
        meant = "; write false"
    return f"must be true or false{got(error)}{meant}"


def _text(error: Mapping[str, Any]) -> str:
    value = error["input"]
    if isinstance(value, bool):
        word = "true" if value else "false"
        return f"must be text, but {word} is not; write '{word}' in quotes"
    if value is None:
        return "has no value; write '' for an empty text"
    return f"must be text{got(error)}"


def _number(error: Mapping[str, Any]) -> str:
    share = re.fullmatch(r"([0-9]{1,2}(?:\.[0-9]+)?)\s*%", str(error["input"]))
    if share:
        return f"must be a number{got(error)}; did you mean {float(share[1]) / 100:.2f}?"
    return f"must be a number{got(error)}"


def _at_most(error: Mapping[str, Any]) -> str:
    limit, value = error["ctx"]["le"], error["input"]
    number = _as_number(value)
    if limit == 1 and number is not None and 1 < number <= 100:
        return f"must be a share between 0 and 1{got(error)}; did you mean {number / 100:.2f}?"
    return f"must be at most {limit}{got(error)}"


def _at_least(error: Mapping[str, Any]) -> str:
    return f"must be at least {error['ctx']['ge']}{got(error)}"


def _above(error: Mapping[str, Any]) -> str:
    return f"must be greater than {error['ctx']['gt']:g}{got(error)}"


def _list(error: Mapping[str, Any]) -> str:
    value = error["input"]
    words: list[Any] = []
    if isinstance(value, str):
        words = value.split()
    elif isinstance(value, int):
        words = [value]
    shown = list(map(str, words))
    if len(words) > 1:  # a number among several words is text
        shown = [f"'{word}'" if word.isdecimal() else word for word in shown]
    if not shown:
        return "must be a list"
    return f"must be a list: [{', '.join(shown)}]"


def _map(error: Mapping[str, Any]) -> str:
    return f"must be a map of keys{got(error)}"


def _choice(error: Mapping[str, Any]) -> str:
    expected = str(error["ctx"]["expected"])
    names = re.findall(r"'([^']+)'", expected)
    near = difflib.get_close_matches(str(error["input"]).lower(), names, n=1, cutoff=0.6)
    return f"must be {expected}{got(error)}{f'; did you mean {near[0]}?' if near else ''}"


def got(error: Mapping[str, Any]) -> str:
    """Return the value that was written, as the end of a sentence."""
    value = error.get("input")
    if isinstance(value, bool):
        return f", got {'true' if value else 'false'}"
    if isinstance(value, str | int | float):
        text = repr(value)
        return f", got {text if len(text) <= 60 else f'{text[:57]}…'}"
    kind = {list: "a list", dict: "a map", type(None): "nothing"}.get(type(value))
    if kind:
        return f", got {kind}"
    return ""


def _as_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


_SENTENCES: Final[dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "extra_forbidden": lambda _error: "unknown key",
    "missing": lambda _error: "is missing",
    "bool_type": _boolean,
    "bool_parsing": _boolean,
    "string_type": _text,
    "float_type": _number,
    "float_parsing": _number,
    "int_type": lambda error: f"must be a whole number{got(error)}",
    "int_parsing": lambda error: f"must be a whole number{got(error)}",
    "int_parsing_size": lambda error: f"is too large{got(error)}",
    "int_from_float": lambda error: f"must be a whole number{got(error)}",
    "less_than_equal": _at_most,
    "greater_than_equal": _at_least,
    "greater_than": _above,
    "list_type": _list,
    "dict_type": _map,
    "model_type": _map,
    "model_attributes_type": _map,
    "literal_error": _choice,
    "tuple_type": _list,
    "too_short": lambda error: "is empty" if error["ctx"]["min_length"] == 1 else "has too few items",
    "too_long": lambda error: f"has more than {error['ctx']['max_length']} items",
    "string_pattern_mismatch": lambda error: f"does not match {error['ctx']['pattern']}{got(error)}",
    "string_too_short": lambda _error: "is empty",
    "string_too_long": lambda error: f"is longer than {error['ctx']['max_length']} characters",
}
