"""Random conversations as a client of vLLM may send them: well-formed, but with every field there or not."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.conversations.building import Message, Variables

PIECES = [
    "a",
    "Zed",
    " ",
    "\n",
    '"',
    "{",
    "}",
    "<|channel>",
    "<channel|>",
    '<|"|>',
    "漢",
    "{{",
    "%}",
    "<turn|>",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
NAMES = st.sampled_from(["act", "see", "a", "B", "type", "items", "description", "required"])
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([0.5, 1e300]) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
IDS = st.sampled_from(["c1", "c2", None])
KINDS = ["text", "text", "image", "image_url", "audio", "input_audio", "video", "video_url"]


def fields(required: dict[str, st.SearchStrategy[Any]], /, **optional: st.SearchStrategy[Any]) -> Any:
    return st.fixed_dictionaries(required, optional=optional)


PARTS = st.sampled_from(KINDS).flatmap(
    lambda kind: fields({"type": st.just(kind), **({"text": TEXTS} if kind == "text" else {})})
)
CONTENT = TEXTS | st.none() | st.lists(PARTS, max_size=3)


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One level of a JSON schema around the levels below it."""
    members = st.dictionaries(NAMES, inner, max_size=3)
    return fields(
        {"type": st.sampled_from(["string", "array", "object", "integer", ["string", "null"]])},
        description=TEXTS,
        nullable=st.booleans(),
        enum=st.lists(SCALARS, max_size=3),
        items=inner | st.just({}),
        properties=members,
        required=st.lists(NAMES, max_size=2),
        additionalProperties=st.booleans() | inner,
        default=SCALARS,
        anyOf=st.lists(inner, max_size=2),
    )


SCHEMAS = st.recursive(st.sampled_from([{}, {"type": "string"}, {"type": "number"}]), schemas, max_leaves=4)
FUNCTIONS = fields(
    {"name": NAMES},
    description=TEXTS,
    parameters=fields(
        {"type": st.just("object")},
        properties=st.dictionaries(NAMES, SCHEMAS, max_size=3),
        required=st.lists(NAMES, max_size=2),
    ),
    response=fields({}, type=st.sampled_from(["object", "string"]), description=TEXTS),
)
TOOLS = st.lists(fields({"type": st.just("function"), "function": FUNCTIONS}), max_size=2)

CALLS = st.lists(
    fields(
        {"function": fields({"name": NAMES, "arguments": st.dictionaries(NAMES, VALUES, max_size=3) | st.none()})},
        id=IDS,
    ),
    max_size=2,
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    fields({"role": st.just("user")}, content=CONTENT),
    fields({"role": st.sampled_from(["system", "developer", "user"]), "content": TEXTS}),
    fields(
        {"role": st.just("assistant"), "content": CONTENT},
        reasoning=TEXTS,
        reasoning_content=TEXTS,
        tool_calls=CALLS,
        tool_responses=st.lists(fields({"response": VALUES}, name=NAMES), max_size=2),
    ),
    fields({"role": st.just("assistant")}, tool_calls=CALLS, reasoning=TEXTS),
    fields({"role": st.just("tool"), "content": CONTENT}, tool_call_id=IDS, name=NAMES),
    fields({"role": st.just("tool"), "content": TEXTS}, tool_call_id=IDS),
)


def conversations() -> st.SearchStrategy[Variables]:
    """The variables of one rendering."""
    return fields(
        {"messages": st.lists(MESSAGES, min_size=1, max_size=7)},
        tools=TOOLS,
        add_generation_prompt=st.booleans(),
        enable_thinking=st.booleans(),
        preserve_thinking=st.booleans(),
    )
