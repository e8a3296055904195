"""Validation errors of a profile as sentences for the person who wrote it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, get_args

from pydantic import BaseModel

from gemmaspec.core.profile.foreign_words import form_meant, key_meant, nearest, same, value_meant
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.profile.rules import OWN_KEYS
from gemmaspec.core.sentences import got, sentence

Path = tuple[str | int, ...]
_MAPS: Final = {"dict_type", "model_type", "model_attributes_type"}
_NOTHING: Final = ("none", "off", "false", "no", "0", "disabled", "never")
"""What is written for no speculation."""
_MANY: Final = 12
"""Maximum number of known keys to list."""
_RESULTS: Final = ("measured", "tuned")
"""Sections that commands write; nobody means one of their keys by another word."""
_FIRST: Final = {"target": "model", "draft": "model", "patches": "required"}
"""The key that a value is meant for, where somebody writes it in place of its section."""
_ADVICE: Final = {
    "num_speculative_tokens": "gemmaspec tune finds the best number, and speculative: null (or --no-spec) drafts none",
    "nodes": "nodes is a number; fleet.yaml names the machines",
    "devices": "the numbers of the GPUs to use, such as [0, 1]; serve.tensor_parallel_size says how many share a model",
}


def invalid(errors: Iterable[Mapping[str, Any]], data: Any) -> Iterator[tuple[Path, str]]:
    """Yield each wrong value once: its path, and one sentence. `errors` are pydantic's."""
    by_path: dict[Path, list[Mapping[str, Any]]] = {}
    for error in errors:
        by_path.setdefault(_path(error, data), []).append(error)
    for path, several in by_path.items():
        keys = [part for part in path if isinstance(part, str)] or [""]
        yield path, _sentence(several, path) + value_meant(keys[-1], several[0].get("input"))


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
    if path and path[-1] in _ADVICE:
        more = f"; {_ADVICE[str(path[-1])]}"
    else:
        more = ""
    if "value_error" in kinds:
        return next(sentence(error) for error in errors if error["type"] == "value_error") + more
    if len(kinds) > 1:
        return f"must be text, a whole number, true or false{got(first)}"
    if "extra_forbidden" in kinds:
        return _unknown(path, first.get("input"))
    if kinds & _MAPS:
        if path in (("draft",), ("speculative",)) and str(first.get("input")).lower() in _NOTHING:
            return "write speculative: null, without a draft, or give --no-spec, to draft nothing"
        known = list(keys_at(path))
        if known:
            keys = f" with keys such as {', '.join(known[:3])}"
        else:
            keys = ""
        return f"must be a map{_as_map(path, first.get('input')) or keys}{got(first)}"
    return sentence(first) + more


def _as_map(path: Path, value: Any) -> str | None:
    """Return a value as the map that it is meant as."""
    if isinstance(value, list) and value:
        if all("=" in str(item) for item in value):
            pairs = [str(item).split("=", 1) for item in value]
            return ": {" + ", ".join(f"{name}: '{text}'" for name, text in pairs) + "}"
        if all(isinstance(item, dict) and "name" in item for item in value):
            return ": {" + ", ".join(f"{item['name']}: …" for item in value) + "}"
    if key := _FIRST.get(str(path[-1]) if path else ""):
        many = value if isinstance(value, list) else [value]
        shown = ", ".join(map(str, many))
        return f": {{{key}: {f'[{shown}]' if key == 'required' else shown}}}"
    return None


def _unknown(path: Path, value: Any) -> str:
    """Return what an unknown key may mean: another name, another section, a similar name, or the known keys here."""
    key, section = str(path[-1]), tuple(str(part) for part in path[:-1])
    other = _flag_of_its_own(section, key)
    meant = f"the right name is {other}" if other else key_meant(section, key)
    if meant:
        return f"unknown key; {meant}"
    known = list(keys_at(path[:-1]))
    if here := same(key, known):
        return f"unknown key; did you mean '{here}'?"
    elsewhere = list(_in_other_sections(key, section))
    if elsewhere:
        elsewhere.sort(key=lambda path: not path.startswith("serve."))
        return f"unknown key; did you mean {' or '.join(elsewhere)}?"
    near = nearest(key, known)
    if near and isinstance(value, dict) <= _holds_keys((*section, near)):
        return f"unknown key; did you mean '{near}'?"
    if flag := same(key, _flags_of_vllm()):
        return f"unknown key; it is a flag of vllm serve: serve.extra_args: [{flag}, …]"
    if not section and (close := _close_in_a_section(key)):
        return f"unknown key; did you mean {' or '.join(close)}?"
    if form := form_meant(key):
        return f"unknown key; {form}"
    if section == ("serve",):
        return f"unknown key; {_no_flag(key)}"
    if len(known) > _MANY:
        more = ", … (all: gemmaspec profile schema)"
    else:
        more = ""
    return f"unknown key; the known keys are {', '.join(known[:_MANY])}{more}"


def _no_flag(key: str) -> str:
    """Return what a key is that the newest vLLM does not have: a flag of an earlier release, or near a flag."""
    from gemmaspec.core.releases.facts import newest, releases

    flag = f"--{key.lower().replace('_', '-')}"
    for release in reversed(releases()):
        if same(key, _flags_of_vllm(release)):
            return f"{flag} was a flag of vLLM up to {release}; remove it"
    said = f"vllm serve {newest()} has no flag {flag}"
    near = nearest(key, _flags_of_vllm())
    if near:
        return f"{said}; did you mean serve.extra_args: [{near}, …]?"
    return f"{said}; remove it (all keys: gemmaspec profile schema)"


def _flags_of_vllm(release: str | None = None) -> Collection[str]:
    """Return the flags of vllm serve, of the newest release that is known or of another."""
    from gemmaspec.core.releases.facts import facts_for, newest

    facts = facts_for(release or newest())
    if facts:
        return facts.flags
    return ()


def _in_other_sections(key: str, section: Sequence[str]) -> Iterator[str]:
    """Yield the same key in each other section that has it, with its section."""
    for name in Profile.model_fields:
        if (name,) != section and (found := same(key, keys_at((name,)))):
            yield f"{name}.{found}"


def _close_in_a_section(key: str) -> list[str]:
    """Return the most similar key of all sections, in each section that has it."""
    sections = {name: list(keys_at((name,))) for name in Profile.model_fields if name not in _RESULTS}
    close = nearest(key, chain.from_iterable(sections.values()))
    return [f"{name}.{close}" for name, keys in sections.items() if close in keys]


def _holds_keys(path: Sequence[str]) -> bool:
    """Return whether a value there may be a map."""
    field: Any = Profile.model_fields.get(path[0])
    return any(True for _ in keys_at(path)) or "dict" in str(field and field.annotation)


def _flag_of_its_own(section: Sequence[str], key: str) -> str | None:
    if tuple(section) == ("serve",):
        return OWN_KEYS.get(f"--{key.replace('_', '-')}")
    return None


def keys_at(path: Sequence[str | int]) -> Iterator[str]:
    """Yield the keys that a profile may have below `path`."""
    model: type[BaseModel] = Profile
    for key in path:
        if isinstance(key, int):
            continue
        field = model.model_fields.get(str(key))
        if field:
            inner = next(_models_in(field.annotation), None)
        else:
            inner = None
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
