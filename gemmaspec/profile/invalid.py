"""What is wrong with a profile's values, as sentences for the person who wrote it. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel

from gemmaspec.profile.model import Profile
from gemmaspec.profile.rules import OWN_KEYS

Path = tuple[str | int, ...]
_YES: Final = ("on", "yes", "y", "true", "1")
_NO: Final = ("off", "no", "n", "false", "0")
_MANY: Final = 12
"""So many known keys are listed at most."""
_OTHER_NAMES: Final = {
    "serve.host": "serve.bind",
    "serve.model": "target.model",
    "serve.quantization": "target.quantization",
    "serve.tool_call_parser": "chat.tool_call_parser",
    "serve.reasoning_parser": "chat.reasoning_parser",
    "draft.method": "speculative.method",
    "speculative.model": "draft.model",
}
"""What people call keys, and what they are called here."""


def invalid(errors: Iterable[Mapping[str, Any]], data: Any) -> Iterator[tuple[Path, str]]:
    """Yield each wrong value once: its path, and one sentence. `errors` are pydantic's."""
    found: dict[Path, list[Mapping[str, Any]]] = {}
    for error in errors:
        found.setdefault(_path(error, data), []).append(error)
    for path, several in found.items():
        yield path, _sentence(several, path)


def _path(error: Mapping[str, Any], data: Any) -> Path:
    """Return where in the data an error is; pydantic adds the names of the types that it tried."""
    path: list[str | int] = []
    for part in error["loc"]:
        inside = isinstance(data, dict) and part in data
        if inside or (isinstance(data, list) and isinstance(part, int) and part < len(data)):
            data = data[part]
            path.append(part)
        elif error["type"] == "missing" and part == error["loc"][-1]:
            path.append(part)
    return tuple(path)


def _sentence(errors: Sequence[Mapping[str, Any]], path: Path) -> str:
    first = errors[0]
    kinds = {error["type"] for error in errors}
    if "value_error" in kinds:
        return next(str(error["ctx"]["error"]) for error in errors if error["type"] == "value_error")
    if len(kinds) > 1:
        return f"must be text, a whole number, true or false{_got(first)}"
    own = _SENTENCES.get(first["type"])
    if own:
        return own(first, path)
    message = str(first["msg"]).removeprefix("Input ").removeprefix("input ")
    return f"{message.replace('should be', 'must be').replace('should have', 'must have')}{_got(first)}"


def _unknown(_error: Mapping[str, Any], path: Path) -> str:
    """Say what an unknown key may mean: another name, a near one, another section, or what is known here."""
    key, section = str(path[-1]), tuple(str(part) for part in path[:-1])
    other = _OTHER_NAMES.get(".".join((*section, key))) or _flag_of_its_own(section, key)
    if other:
        return f"unknown key; here it is called {other}"
    known = list(keys_at(path[:-1]))
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f"unknown key; did you mean '{near[0]}'?"
    elsewhere = [name for name in Profile.model_fields if not section and key in keys_at((name,))]
    if elsewhere:
        return f"unknown key; did you mean {' or '.join(f'{name}.{key}' for name in elsewhere)}?"
    if section == ("serve",):
        flag = f"--{key.replace('_', '-')}"
        return f"unknown key; any other flag of vllm serve goes into serve.extra_args: [{flag}, …]"
    more = ", …" if len(known) > _MANY else ""
    return f"unknown key; known here: {', '.join(known[:_MANY])}{more}"


def _flag_of_its_own(section: Sequence[str], key: str) -> str | None:
    return OWN_KEYS.get(f"--{key.replace('_', '-')}") if tuple(section) == ("serve",) else None


def _boolean(error: Mapping[str, Any], _path: Path) -> str:
    word = str(error["input"]).lower()
    value = "true" if word in _YES else "false" if word in _NO else None
    return f"must be true or false{_got(error)}{f'; write {value}' if value else ''}"


def _text(error: Mapping[str, Any], _path: Path) -> str:
    value = error["input"]
    if isinstance(value, bool):
        word = "true" if value else "false"
        return f"must be text, and {word} is not; write '{word}' in quotes"
    return "has no value; write '' for an empty text" if value is None else f"must be text{_got(error)}"


def _number(error: Mapping[str, Any], _path: Path) -> str:
    share = re.fullmatch(r"([0-9]{1,2}(?:\.[0-9]+)?)\s*%", str(error["input"]))
    if share:
        return f"must be a number{_got(error)}; did you mean {float(share[1]) / 100:.2f}?"
    return f"must be a number{_got(error)}"


def _at_most(error: Mapping[str, Any], _path: Path) -> str:
    limit, value = error["ctx"]["le"], error["input"]
    number = _as_number(value)
    if limit == 1 and number is not None and 1 < number <= 100:
        return f"is a share between 0 and 1{_got(error)}; did you mean {number / 100:.2f}?"
    return f"must be at most {limit}{_got(error)}"


def _at_least(error: Mapping[str, Any], _path: Path) -> str:
    return f"must be at least {error['ctx']['ge']}{_got(error)}"


def _above(error: Mapping[str, Any], _path: Path) -> str:
    return f"must be greater than {error['ctx']['gt']:g}{_got(error)}"


def _list(error: Mapping[str, Any], _path: Path) -> str:
    value = error["input"]
    return f"must be a list{f': [{value}]' if isinstance(value, str | int) else ''}"


def _map(error: Mapping[str, Any], path: Path) -> str:
    known = list(keys_at(path))
    keys = f" with keys such as {', '.join(known[:3])}" if known else ""
    return f"must be a map{keys}{_got(error)}"


def _choice(error: Mapping[str, Any], _path: Path) -> str:
    expected = str(error["ctx"]["expected"])
    names = re.findall(r"'([^']+)'", expected)
    near = difflib.get_close_matches(str(error["input"]), names, n=1, cutoff=0.6)
    return f"must be {expected}{_got(error)}{f'; did you mean {near[0]}?' if near else ''}"


def _got(error: Mapping[str, Any]) -> str:
    value = error.get("input")
    if isinstance(value, bool):
        return f", got {'true' if value else 'false'}"
    if isinstance(value, str | int | float):
        text = repr(value)
        return f", got {text if len(text) <= 60 else f'{text[:57]}…'}"
    kind = {list: "a list", dict: "a map", type(None): "nothing"}.get(type(value))
    return f", got {kind}" if kind else ""


def _as_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


_SENTENCES: Final[dict[str, Callable[[Mapping[str, Any], Path], str]]] = {
    "extra_forbidden": _unknown,
    "missing": lambda _error, _path: "is missing",
    "bool_type": _boolean,
    "bool_parsing": _boolean,
    "string_type": _text,
    "float_type": _number,
    "float_parsing": _number,
    "int_type": lambda error, _path: f"must be a whole number{_got(error)}",
    "int_parsing": lambda error, _path: f"must be a whole number{_got(error)}",
    "int_parsing_size": lambda error, _path: f"is too large{_got(error)}",
    "int_from_float": lambda error, _path: f"must be a whole number{_got(error)}",
    "less_than_equal": _at_most,
    "greater_than_equal": _at_least,
    "greater_than": _above,
    "list_type": _list,
    "dict_type": _map,
    "model_type": _map,
    "model_attributes_type": _map,
    "literal_error": _choice,
    "string_too_short": lambda _error, _path: "is empty",
    "string_too_long": lambda error, _path: f"is longer than {error['ctx']['max_length']} characters",
}


def keys_at(path: Sequence[str | int]) -> Iterator[str]:
    """Yield the keys that a profile may have below `path`."""
    model: type[BaseModel] = Profile
    for key in path:
        if isinstance(key, int):
            continue
        field = model.model_fields.get(str(key))
        inner = next(_models_in(field.annotation), None) if field else None
        if inner is None:
            return
        model = inner
    for name, field in model.model_fields.items():
        yield field.alias or name


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
