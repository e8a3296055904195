"""Short words for writing conversations down."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]
Variables = dict[str, Any]


def system(content: Any) -> Message:
    return {"role": "system", "content": content}


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def assistant(content: Any = None, **fields: Any) -> Message:
    return {"role": "assistant", "content": content, **fields}


def call(name: str, arguments: Any = None, call_id: str | None = None) -> Message:
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if call_id is None else {**made, "id": call_id}


def tool(content: Any, **fields: Any) -> Message:
    return {"role": "tool", "content": content, **fields}


def function(name: str, parameters: Any = None, **fields: Any) -> Message:
    declared = {"name": name, "description": f"Does {name}.", "parameters": parameters, **fields}
    return {"type": "function", "function": declared}


def taking(**properties: Any) -> Message:
    """A tool whose parameters are `properties`, the first one required."""
    schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return function("act", schema)


def asked(*messages: Message, **variables: Any) -> Variables:
    """The variables of a request that waits for an answer."""
    return {"messages": list(messages), "add_generation_prompt": True, **variables}


def kept(*messages: Message, **variables: Any) -> Variables:
    """The variables of a finished conversation."""
    return {"messages": list(messages), "add_generation_prompt": False, **variables}


TEXT = {"type": "text", "text": " Look at this. "}
IMAGE = {"type": "image"}
STRING = {"type": "string"}
WEATHER = taking(city={"type": "string", "description": "A city"})
ASK = user("How is the weather in Kraków?")
CALL = call("act", {"city": "Kraków"}, "c1")
CALLING = assistant("", tool_calls=[CALL])
ANSWER = tool('{"sky": "clear"}', tool_call_id="c1")
HARD_TEXT = 'He said "no", then {"a": [1]}\n\t\\ and <|"|> 漢字 🙂 é\u00a0'
