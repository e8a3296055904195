"""What a flag and the keys of a JSON configuration take, from the fields of vLLM's configuration classes.

The notation is that of values.py. A flag's word is converted by type, in the order of _compute_kwargs in
vllm/engine/arg_utils.py; pydantic then checks the bounds and the keys (vllm/config/, every release). What is written
in a form that is not known here counts as taking anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from extraction.hints import hints_of
from extraction.sources import Hint, Sources, Unexpected, constant
from gemmaspec.core.releases.values import ANY

_BOUNDS: Final = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_READABLE: Final = frozenset(
    {
        *("max_num_batched_tokens", "max_num_scheduled_tokens", "kv_cache_memory_bytes", "max_num_queued_tokens"),
        "safetensors_prefetch_block_size",
    }
)
"""Numbers that may be written as 2k (human_readable_int_args in _compute_kwargs)."""
_UNSEEN: Final = "TensorizerConfig"
"""A class that vLLM imports for type checkers alone (vllm/config/load.py), so that any text passes."""
_MOST: Final = 12
"""Choices that are worth their place; of longer lists, which change with every release, only the type is kept."""
_PLAIN: Final = {"bool": "bool", "int": "int", "float": "float", "str": "str", "None": "None", "dict": "{}"}
_MAPPINGS: Final = frozenset({"dict", "Dict", "Mapping"})

LIMITS: Final = "DummyOptions"
"""The table's name for what --limit-mm-per-prompt takes. vLLM has no class of it: a validator makes one for each
modality, from a number or from its keys (MultiModalConfig._validate_limit_per_prompt, every release)."""
MODALITIES: Final = {"image": "ImageDummyOptions", "video": "VideoDummyOptions", "audio": "AudioDummyOptions"}
MULTIMODAL: Final = "vllm/config/multimodal.py"

Configs = dict[str, dict[str, str]]
"""Class → key → the form of its value."""


def names_of(sources: Sources, path: str, owner: str, field: str, hints: Sequence[Hint]) -> str:
    """Return the names of an enum that a class looks the text for a field up in, or that it reads a version.

    Empty for any other field.
    """
    own = [one for one in _validators(sources.class_of(path, owner)[1]) if field in one.keys]
    if any("    parse(value)" in one.body for one in own):  # packaging.version
        return "?version"
    folded = any(one.folds for one in own)
    enum = next((hint.defined for hint in hints if hint.defined and hint.kind != "config"), None)
    names = _members(sources, *enum) if folded and enum else ""
    return "|".join(one for one in names.split("|") if one.startswith("^"))


def word_of(field: str, hints: Sequence[Hint], bounds: str) -> str:
    """Return what a flag takes that is made of a field; empty for any text, and for one with choices or none."""
    if field == "limit_per_prompt":
        return f"@{LIMITS}"
    kinds = {hint.kind for hint in hints}
    maybe = "?" if "None" in kinds else ""
    if "config" in kinds and kinds & _MAPPINGS:
        return f"{maybe}{{}}" if any(hint.defined and hint.defined[1] != _UNSEEN for hint in hints) else ""
    if config := next((hint for hint in hints if hint.kind == "config"), None):
        return f"{maybe}@{config.defined[1]}" if config.defined else ""
    if kinds & {"bool", "literal"}:
        return ""
    if listed := next((hint for hint in hints if hint.kind == "list"), None):
        inner = {hint.kind for hint in listed.inner}
        return "+" + (next(iter(inner)) if inner in ({"int"}, {"float"}) else "")
    if "int" in kinds:
        kind = "length" if field == "max_model_len" else "readable" if field in _READABLE else "int"
        return f"{maybe}{kind}{bounds}"
    if "float" in kinds:
        return f"{maybe}float{bounds}"
    if kinds & _MAPPINGS:
        return f"{maybe}{'text or {}' if 'str' in kinds else '{}'}"
    return ""


def bounds_of(statement: ast.AnnAssign) -> str:
    """Return the bounds in a field's `Field(…)`, as >=1<=5; those that are not written out are left out."""
    match statement.value:
        case ast.Call(func=ast.Name(id="Field"), keywords=keywords):
            found = ((_BOUNDS[one.arg], _number(one.value)) for one in keywords if one.arg in _BOUNDS)
            return "".join(f"{sign}{number}" for sign, number in found if number is not None)
    return ""


def _number(node: ast.expr) -> str | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return f"{value:g}" if isinstance(value, int | float) else None


def configs_of(sources: Sources, wanted: Iterable[tuple[str, str]]) -> Configs:
    """Return the keys of classes, each by file and name, and of the classes that their keys take."""
    found: Configs = {}
    waiting = list(wanted)
    while waiting:
        path, name = waiting.pop()
        if name not in found:
            found[name], more = _keys(sources, path, name)
            waiting += more
    return found


def _keys(sources: Sources, path: str, name: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the keys of a class, and the classes that they take. One that accepts others has the key `*`."""
    checks = list(_validators(sources.class_of(path, name)[1]))
    keys: dict[str, str] = {} if _forbids(sources.class_of(path, name)[1]) else {"*": ANY}
    more: list[tuple[str, str]] = []
    for key, (file, statement) in sources.fields(path, name).items():
        if _is_no_key(statement):
            continue
        own = [one for one in checks if one.keys & {key, "*"}]
        try:
            hints = hints_of(sources, file, statement.annotation)
        except Unexpected:
            hints = ()
        if not hints or "SkipValidation" in ast.unparse(statement.annotation):
            keys[key] = ANY
            continue
        keys[key] = _json(sources, hints, bounds_of(statement), own)
        more += [hint.defined for hint in hints if hint.kind == "config" and hint.defined]
    return keys, more


def _is_no_key(statement: ast.AnnAssign) -> bool:
    """Return whether the constructor does not take a field."""
    if "ClassVar" in ast.unparse(statement.annotation):
        return True
    match statement.value:
        case ast.Call(func=ast.Name(id="Field" | "field"), keywords=keywords):
            return any(one.arg == "init" and ast.unparse(one.value) == "False" for one in keywords)
    return False


def _forbids(found: ast.ClassDef) -> bool:
    """Return whether a class refuses keys that it does not have: `config` of vllm/config/utils.py does that."""
    decorators = [ast.unparse(one) for one in found.decorator_list]
    named = [text.partition("(")[0].rpartition(".")[2] for text in decorators]
    return "config" in named or any("extra='forbid'" in text for text in decorators)


@dataclass(frozen=True)
class _Validator:
    """One field_validator of a class."""

    keys: frozenset[str]
    mode: str
    body: str

    @property
    def folds(self) -> bool:
        """Whether it looks a text up among the names of an enum."""
        return (self.mode == "before" and ".upper()]" in self.body) or "__members__" in self.body

    @property
    def takes_text(self) -> bool:
        """Whether it turns a text, and nothing else, into what the key takes."""
        return self.mode == "before" and not self.folds and "isinstance(value, str)" in self.body

    @property
    def frees(self) -> bool:
        """Whether it changes values in a way that is not read here."""
        if self.keys == {"*"} and not any(word in self.body for word in (".pop(", "] =")):
            return False  # it only looks
        return not (
            self.mode in ("after", "plain")
            or (self.mode == "wrap" and "if value is None" in self.body)
            or (self.mode == "before" and (self.folds or self.takes_text or "(**value)" in self.body))
        )


def _validators(found: ast.ClassDef) -> Iterator[_Validator]:
    for one in found.body:
        for decorator in one.decorator_list if isinstance(one, ast.FunctionDef) else ():
            match decorator:
                case ast.Call(func=ast.Name(id="field_validator"), args=names, keywords=keywords):
                    mode = next((constant(word.value) for word in keywords if word.arg == "mode"), "after")
                    keys = frozenset(text for name in names if (text := constant(name)))
                    yield _Validator(keys, mode or "", ast.unparse(one))
                case ast.Call(
                    func=ast.Name(id="model_validator"), keywords=[ast.keyword(value=ast.Constant("before"))]
                ):
                    yield _Validator(frozenset("*"), "before", ast.unparse(one))


def _json(sources: Sources, hints: Sequence[Hint], bounds: str, checks: Sequence[_Validator] = ()) -> str:
    """Return what a key takes, as alternatives."""
    if any(one.frees for one in checks):
        return ANY
    if any(hint.kind == "str" for hint in hints):
        hints = [hint for hint in hints if hint.kind != "literal"]
    if any(one.takes_text for one in checks):
        hints = [*(hint for hint in hints if hint.kind != "literal"), Hint(kind="str")]
    folded = next((one for one in checks if one.folds), None)
    found = [_alternative(sources, hint, bounds, folded=folded is not None) for hint in hints]
    if folded and "'auto'" in folded.body:
        found.append("^AUTO")
    if any(one.mode == "wrap" for one in checks):
        found.append("None")
    return ANY if ANY in found else "|".join(dict.fromkeys(found))


def _alternative(sources: Sources, hint: Hint, bounds: str, *, folded: bool) -> str:
    if hint.kind == "literal" and len(hint.values) > _MOST:
        return "int" if hint.whole else "str"
    if hint.kind == "literal":
        return "|".join(f"{'#' if hint.whole else '='}{value}" for value in hint.values)
    if hint.kind == "config" and hint.defined:
        return f"@{hint.defined[1]}"
    if hint.kind in ("int", "float"):
        return hint.kind + bounds
    if hint.kind == "list":
        inner = _json(sources, hint.inner, "")
        return f"[{inner}]" if inner in ("int", "float", "str", "bool") else "[]"
    if hint.kind in _MAPPINGS:
        return "{}"
    if folded and hint.defined:
        return _members(sources, *hint.defined)
    if hint.defined and not folded and (values := _texts(sources, *hint.defined)):
        return "|".join(f"={value}" for value in values)
    return _PLAIN.get(hint.kind, ANY)


def _texts(sources: Sources, path: str, name: str) -> list[str]:
    """Return the values of a short enum of texts, `class X(str, Enum)`, as pydantic takes them; else none."""
    found = sources.class_of(path, name)[1]
    if [ast.unparse(base).rpartition(".")[2] for base in found.bases] != ["str", "Enum"]:
        return []
    values = [constant(one.value) for one in found.body if isinstance(one, ast.Assign)]
    return [text for text in values if text] if all(values) and len(values) <= _MOST else []


def _members(sources: Sources, path: str, name: str) -> str:
    """Return the names of an enum, which are folded, and its numbers."""
    try:
        found = sources.class_of(path, name)[1]
    except Unexpected:
        return ANY
    rows = [one for one in found.body if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)]
    names = [one.targets[0].id for one in rows if isinstance(one.targets[0], ast.Name)]
    numbers = [one.value.value for one in rows if isinstance(one.value, ast.Constant) and type(one.value.value) is int]
    if len(names) > _MOST:
        return "str"
    return "|".join((*(f"^{text}" for text in names), *(f"#{number}" for number in numbers)))
