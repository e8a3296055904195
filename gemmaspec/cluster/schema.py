"""Objects against the schema in a file: a CustomResourceDefinition, or a JSON Schema such as a chart's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from gemmaspec.errors import UsageError

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_FINDINGS: Final = 20
_SHOWN: Final = 160


@dataclass(frozen=True, kw_only=True)
class Schema:
    """A schema for objects of one kind and version; without them, for Helm values."""

    kind: str | None
    api_version: str | None
    schema: Mapping[str, Any]


def read_schemas(text: str, *, file: str) -> list[Schema]:
    """Return the schemas in a file's text: of each version of a CustomResourceDefinition, or the JSON Schema itself.

    Unknown fields are errors in them, as they are for an API server that is asked strictly. Raises UsageError for
    a file that holds neither.
    """
    try:
        documents = [one for one in yaml.load_all(text, Loader=_LOADER) if one]
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UsageError(f"{file} is neither YAML nor JSON", hint=f"head {file}") from None
    found = [schema for document in documents for schema in _schemas(document)]
    if not found:
        raise UsageError(f"{file} holds neither a CustomResourceDefinition nor a JSON Schema", hint=f"head {file}")
    return found


def fits(schema: Schema, document: Mapping[str, Any]) -> bool:
    """Return whether a schema is for this object: of its kind and version, or for values, which have neither."""
    return (schema.kind, schema.api_version) == (document.get("kind"), document.get("apiVersion"))


def violations(schema: Schema, document: Mapping[str, Any]) -> list[str]:
    """Return what of an object the schema does not allow, each as path: what is wrong. Fetches nothing."""
    import jsonschema  # slow to import
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    # An empty registry: a $ref to an address is an error, not a request.
    validator = jsonschema.Draft7Validator(schema.schema, registry=Registry())
    try:
        errors = sorted(validator.iter_errors(document), key=lambda error: list(map(str, error.absolute_path)))
    except (Unresolvable, jsonschema.exceptions.SchemaError, TypeError, AttributeError, ValueError, RecursionError):
        raise UsageError("the schema cannot be used: it is damaged, or refers to another file") from None
    lines = [f"{'.'.join(map(str, one.absolute_path)) or '(top)'}: {_short(one.message)}" for one in errors]
    more = len(lines) - _MOST_FINDINGS
    return [*lines[:_MOST_FINDINGS], f"and {more} more"] if more > 0 else lines


def _short(message: str) -> str:
    return message if len(message) <= _SHOWN else f"{message[:_SHOWN]}…"


def _schemas(document: Any) -> Iterator[Schema]:
    if not isinstance(document, dict):
        return
    if document.get("kind") == "CustomResourceDefinition":
        yield from _of_definition(document)
    elif "$schema" in document or "properties" in document:
        yield Schema(kind=None, api_version=None, schema=document)


def _of_definition(document: Mapping[str, Any]) -> Iterator[Schema]:
    try:
        spec = document["spec"]
        for version in spec["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            _make_strict(schema)
            # What every object has: the API server checks it by rules of its own.
            schema["properties"] |= {
                "metadata": {"type": "object"},
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
            }
            api_version = f"{spec['group']}/{version['name']}"
            yield Schema(kind=str(spec["names"]["kind"]), api_version=api_version, schema=schema)
    except (KeyError, TypeError, AttributeError):
        return


def _make_strict(schema: Any) -> None:
    """Turn an OpenAPI schema of Kubernetes into a JSON Schema that forbids unknown fields, in place.

    Each part once: one that is shared, or holds itself, comes to an end.
    """
    seen: set[int] = set()
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, (dict, list)) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            _forbid_unknown(part)
        waiting += _children(part)


def _children(part: dict[str, Any] | list[Any]) -> Sequence[Any]:
    return list(part.values()) if isinstance(part, dict) else part


def _forbid_unknown(part: dict[str, Any]) -> None:
    """Change one part of a schema; a field that is called `properties` or `type` is not one."""
    if part.get("x-kubernetes-int-or-string") is True:
        part.pop("type", None)
    open_ = part.get("x-kubernetes-preserve-unknown-fields") is True
    if part.get("type") == "object" and isinstance(part.get("properties"), dict) and not open_:
        part.setdefault("additionalProperties", False)
    if part.get("nullable") is True and isinstance(part.get("type"), str):
        part["type"] = [part["type"], "null"]
