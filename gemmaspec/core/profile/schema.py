"""The JSON Schema of a profile file, for editors.

It describes a file, not a merged profile: `extends` is allowed, a file that extends another may omit any key, and null
removes a value. It is written for YAML as editors read it, in which 0.80 is a number and not a text.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import ModuleType
from typing import Any, Final

from gemmaspec.core.profile import fields, model
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Measured, Profile

Schema = dict[str, Any]

_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
_BOUNDS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""pydantic keeps its own names of the bounds if a custom validator runs before them."""

_WHOLE: Final = ("schema", "summary", "machine", "target")
"""The required keys of a profile that has a name and extends no other."""

_EXTENDS: Final[Schema] = {
    "description": "A profile whose keys this one inherits and may replace: next to this file, or a shipped one.",
    "type": "string",
    "pattern": "^[a-z0-9_][a-z0-9_-]*$",
}


def profile_schema() -> Schema:
    """Return the schema of a profile file."""
    written = Profile.model_json_schema(by_alias=True)
    for module in (model, model, fields, model):
        for part, key, text in _docstrings(module):
            if part == Profile.__name__:
                definition = written
            else:
                definition = written["$defs"][part]
            definition["properties"][key.rstrip("_")]["description"] = text
    properties = _written_out(written, written["$defs"])["properties"]
    _let_numbers_be_text(properties)
    properties["machine"] = _machine(properties["machine"])
    return {
        "$schema": _DIALECT,
        "title": "A gemmaspec profile",
        "description": written["description"],
        "type": "object",
        "additionalProperties": False,
        "properties": {"extends": _EXTENDS, **properties},
        "if": {"required": ["name"], "not": {"required": ["extends"]}},
        "then": {"required": list(_WHOLE)},
    }


def _machine(property_: Schema) -> Schema:
    """Return the property of a machine: one of the table, or a number of its GPUs, in any spelling."""
    several = {"type": "string", "pattern": r"^[1-9][0-9]? ?x ?[A-Za-z0-9 -]+$"}
    described = {key: value for key, value in property_.items() if key not in ("type", "anyOf")}
    return {**described, "anyOf": [{"enum": [*MACHINES, None]}, several]}


def _docstrings(module: ModuleType) -> Iterator[tuple[str, str, str]]:
    """Yield the class, the field and the text below it.

    pydantic's use_attribute_docstrings does the same, but parses the module for each class at every import.
    """
    for part in ast.parse(inspect.getsource(module)).body:
        for field, after in pairwise(part.body if isinstance(part, ast.ClassDef) else ()):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                    assert isinstance(part, ast.ClassDef)
                    yield part.name, key, inspect.cleandoc(text)


def _written_out(node: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return a schema without references and titles, in which every property may be null."""
    name = str(node.get("$ref", "")).rpartition("/")[2]
    if name:
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _written_out({**definitions[name], **beside}, definitions)
    complete = node.get("title") == Measured.__name__  # lists are replaced, so their items are complete
    out: Schema = {}
    for key, value in node.items():
        if key == "properties":
            out[key] = {}
            for name, inner in value.items():
                out[key][name] = _nullable(_written_out(inner, definitions))
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            out[key] = _written_out(value, definitions)
        elif key == "anyOf":
            out[key] = [_written_out(inner, definitions) for inner in value]
        elif key == "description":
            out[key] = " ".join(value.split())
        elif key not in ("title", "$defs", "default") and (key != "required" or complete):
            out[_BOUNDS.get(key, key)] = value
    return out


def _nullable(schema: Schema) -> Schema:
    """Return the schema, or null: as a list of types if possible, because editors then name the wrong key."""
    choices = [choice for choice in schema.get("anyOf", [schema]) if choice != {"type": "null"}]
    if len(choices) > 1:
        return {**schema, "anyOf": [*choices, {"type": "null"}]}
    merged = choices[0] | schema
    merged.pop("anyOf", None)
    if "const" in merged:
        merged["enum"] = [merged.pop("const")]
    if "enum" in merged:
        merged["enum"] = [*merged["enum"], None]
    return {**merged, "type": [merged["type"], "null"]}


def _let_numbers_be_text(properties: Schema) -> None:
    """Allow an unquoted number for a text: `vllm: 0.33`, `user: 1000`, `env: {X: 1}`."""
    runtime = properties["runtime"]["properties"]
    user = properties["container"]["properties"]["user"]
    for place in (runtime["vllm"], user):
        place["type"] = ["string", "number", "null"]
    for place in (runtime["packages"], properties["env"]):
        place["additionalProperties"]["type"] = ["string", "number"]
    properties["serve"]["properties"]["extra_args"]["items"]["type"] = ["string", "number"]
    chat = properties["chat"]["properties"]
    chat["template_kwargs"]["additionalProperties"] = {"type": ["boolean", "number", "string"]}
