"""Validation errors of a profile as sentences for the person who wrote it. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel

from gemmaspec.profile.model import Profile
from gemmaspec.profile.rules import OWN_KEYS
from gemmaspec.sentences import got, sentence

Path = tuple[str | int, ...]
_MAPS: Final = {"dict_type", "model_type", "model_attributes_type"}
_MANY: Final = 12
"""Maximum number of known keys to list."""
_OTHER_NAMES: Final = {
    "serve.host": "serve.bind",
    "serve.model": "target.model",
    "serve.quantization": "target.quantization",
    "serve.tool_call_parser": "chat.tool_call_parser",
    "serve.reasoning_parser": "chat.reasoning_parser",
    "draft.method": "speculative.method",
    "speculative.model": "draft.model",
}
"""Names that people use for keys, and the right ones."""


def invalid(errors: Iterable[Mapping[str, Any]], data: Any) -> Iterator[tuple[Path, str]]:
    """Yield each wrong value once: its path, and one sentence. `errors` are pydantic's."""
    found: dict[Path, list[Mapping[str, Any]]] = {}
    for error in errors:
        found.setdefault(_path(error, data), []).append(error)
    for path, several in found.items():
        yield path, _sentence(several, path)


def _path(error: Mapping[str, Any], data: Any) -> Path:
    """Return the place of an error in the data, without the names of types that pydantic adds to it."""
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
        return next(sentence(error) for error in errors if error["type"] == "value_error")
    if len(kinds) > 1:
        return f"must be text, a whole number, true or false{got(first)}"
    if "extra_forbidden" in kinds:
        return _unknown(path)
    if kinds & _MAPS:
        known = list(keys_at(path))
        keys = f" with keys such as {', '.join(known[:3])}" if known else ""
        return f"must be a map{keys}{got(first)}"
    return sentence(first)


def _unknown(path: Path) -> str:
    """Return what an unknown key may mean: another name, a similar one, another section, or the known keys here."""
    key, section = str(path[-1]), tuple(str(part) for part in path[:-1])
    other = _OTHER_NAMES.get(".".join((*section, key))) or _flag_of_its_own(section, key)
    if other:
        return f"unknown key; the right name is {other}"
    known = list(keys_at(path[:-1]))
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f"unknown key; did you mean '{near[0]}'?"
    elsewhere = [name for name in Profile.model_fields if not section and key in keys_at((name,))]
    if elsewhere:
        return f"unknown key; did you mean {' or '.join(f'{name}.{key}' for name in elsewhere)}?"
    if section == ("serve",):
        flag = f"--{key.replace('_', '-')}"
        return f"unknown key; add other flags of vllm serve to serve.extra_args: [{flag}, …]"
    more = ", …" if len(known) > _MANY else ""
    return f"unknown key; the known keys are {', '.join(known[:_MANY])}{more}"


def _flag_of_its_own(section: Sequence[str], key: str) -> str | None:
    return OWN_KEYS.get(f"--{key.replace('_', '-')}") if tuple(section) == ("serve",) else None


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
