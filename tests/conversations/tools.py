"""Conversations that declare tools: whole tools, and schemas of their parameters."""

from __future__ import annotations

from typing import Any

from tests.conversations.building import (
    ASK,
    HARD_TEXT,
    STRING,
    WEATHER,
    Variables,
    asked,
    function,
    taking,
)

TOOLS: dict[str, Any] = {
    "one": [WEATHER],
    "two": [WEATHER, function("see")],
    "an empty list": [],
    "null": None,
    "without parameters": [function("see")],
    "with empty parameters": [function("see", {"type": "object", "properties": {}})],
    "with parameters of no type": [function("see", {"properties": {"a": STRING}})],
    "with types in capitals": [function("see", {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}})],
    "without description": [{"type": "function", "function": {"name": "see"}}],
    "with a null description": [function("see", description=None)],
    "flat": [{"type": "function", "name": "see"}],
    "with a response": [function("see", response={"description": "What is seen", "type": "object"})],
    "with a string response": [function("see", response={"type": "string"})],
}

SCHEMAS: dict[str, dict[str, Any]] = {
    "scalars": {"s": STRING, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"}},
    "an enum": {"unit": {"type": "string", "enum": ["C", "F"], "description": "Unit"}},
    "an enum without description": {"unit": {"type": "string", "enum": ["C", 'q"']}},
    "an enum of numbers": {"n": {"type": "integer", "enum": [1, 2]}},
    "an enum with null": {"u": {"type": "string", "enum": ["C", None, True, 1]}},
    "an enum of objects": {"u": {"type": "string", "enum": [{"k": 1}]}},
    "nullable": {"a": {"type": "string", "nullable": True, "description": "d"}},
    "nullable alone": {"a": {"type": "integer", "nullable": True}},
    "nullable and enum": {"a": {"type": "string", "nullable": True, "enum": ["x"]}},
    "not nullable": {"a": {"type": "string", "nullable": False}},
    "an array": {"a": {"type": "array", "items": STRING, "description": "d"}},
    "an array without description": {"a": {"type": "array", "items": STRING}},
    "a nullable array": {"a": {"type": "array", "nullable": True, "items": {"type": "number"}}},
    "an array without items": {"a": {"type": "array"}},
    "an array of anything": {"a": {"type": "array", "items": {}}},
    "an array of several types": {"a": {"type": "array", "items": {"type": ["string", "null"], "enum": ["a", None]}}},
    "an array of arrays": {"a": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}},
    "an array of objects": {
        "a": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"k": {"type": "string", "enum": ["x"]}, "v": {"type": "number"}},
                "required": ["k", "v"],
                "description": "A pair",
                "additionalProperties": False,
                "default": None,
            },
        }
    },
    "an array of objects without properties": {"a": {"type": "array", "items": {"properties": None}}},
    "an object": {
        "place": {
            "type": "object",
            "description": "Where",
            "properties": {"lat": {"type": "number"}, "lon": {"type": "number", "nullable": True}},
            "required": ["lat", "lon"],
        }
    },
    "an object without description": {"o": {"type": "object", "properties": {"a": STRING}}},
    "a nullable object": {"o": {"type": "object", "nullable": True, "properties": {"a": STRING}}},
    "an object of anything": {"o": {"type": "object"}},
    "an object of anything, described": {"o": {"type": "object", "description": "d"}},
    "an object of named extras": {"o": {"type": "object", "additionalProperties": STRING}},
    "an object closed by false": {"o": {"type": "object", "additionalProperties": False, "title": "T"}},
    "an object that requires what it does not name": {"o": {"type": "object", "required": ["x"]}},
    "objects in objects": {
        "o": {
            "type": "object",
            "properties": {
                "p": {
                    "type": "object",
                    "properties": {"q": {"type": "array", "items": STRING}},
                    "required": ["q"],
                }
            },
        }
    },
    "parameters named like keywords": {
        "city": STRING,
        "type": {"type": "string", "description": "Kind"},
        "description": STRING,
        "required": {"type": "boolean"},
        "properties": {"type": "object", "properties": {"type": STRING}},
        "nullable": {"type": "boolean"},
        "items": {"type": "array", "items": STRING},
    },
    "names of both cases": {"b": STRING, "A": STRING, "a2": STRING},
    "several types": {"a": {"type": ["string", "null"], "description": "d"}},
    "anyOf": {"a": {"anyOf": [STRING, {"type": "null"}], "description": "d", "default": None}},
    "anyOf in an array": {"a": {"type": "array", "items": {"anyOf": [STRING, {"type": "null"}]}}},
    "a reference": {"a": {"$ref": "#/$defs/A"}},
    "a schema of true": {"a": True},
    "an empty schema": {"a": {}},
    "limits and defaults": {"n": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3, "format": "int32"}},
    "hard text": {"a": {"type": "string", "description": HARD_TEXT, "enum": [HARD_TEXT]}},
}

CONVERSATIONS: dict[str, Variables] = {
    **{f"tools: {name}": asked(ASK, tools=tools) for name, tools in TOOLS.items()},
    "tools: one, with thinking on": asked(ASK, tools=[WEATHER], enable_thinking=True),
    **{f"schema: {name}": asked(ASK, tools=[taking(**schemas)]) for name, schemas in SCHEMAS.items()},
}
