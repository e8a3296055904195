"""Conversations in which the model calls tools, and what they answer."""

from __future__ import annotations

from typing import Any

from tests.conversations.building import (
    ANSWER,
    ASK,
    CALL,
    CALLING,
    HARD_TEXT,
    IMAGE,
    TEXT,
    WEATHER,
    Message,
    Variables,
    asked,
    assistant,
    call,
    kept,
    system,
    tool,
    user,
)

CALLS: dict[str, Variables] = {
    "a call waits for its result": asked(ASK, assistant(None, tool_calls=[CALL]), tools=[WEATHER]),
    "the same without generation prompt": kept(ASK, assistant(None, tool_calls=[CALL])),
    "the same with thinking on": asked(ASK, assistant(None, tool_calls=[CALL]), enable_thinking=True),
    "a call with text": asked(ASK, assistant("Let me see.", tool_calls=[CALL])),
    "a call with text and its result": asked(ASK, assistant("Let me see.", tool_calls=[CALL]), ANSWER),
    "a call with blank text and its result": asked(ASK, assistant(" \n", tool_calls=[CALL]), ANSWER),
    "a call and its result": asked(ASK, assistant(None, tool_calls=[CALL]), ANSWER, tools=[WEATHER]),
    "a result with thinking on": asked(ASK, CALLING, ANSWER, enable_thinking=True),
    "a result without generation prompt": kept(ASK, CALLING, ANSWER),
    "a result and the model's answer": kept(ASK, CALLING, ANSWER, assistant("Clear")),
    "an answer from text and result": kept(ASK, assistant("Hm.", tool_calls=[CALL]), ANSWER, assistant("Clear")),
    "a result and the next question": asked(ASK, CALLING, ANSWER, user("And now?")),
    "a call left unanswered": asked(ASK, CALLING, user("Never mind")),
    "a call left unanswered and a second message": asked(ASK, CALLING, assistant("Hm")),
    "parallel calls": asked(ASK, assistant("", tool_calls=[CALL, call("see", {"a": 1}, "c2")])),
    "parallel calls and results": asked(
        ASK,
        assistant("", tool_calls=[CALL, call("see", {"a": 1}, "c2")]),
        tool("one", tool_call_id="c1"),
        tool("two", tool_call_id="c2"),
    ),
    "results in the other order": asked(
        ASK,
        assistant("", tool_calls=[CALL, call("see", {"a": 1}, "c2")]),
        tool("two", tool_call_id="c2"),
        tool("one", tool_call_id="c1"),
    ),
    "one result of two": asked(
        ASK, assistant("", tool_calls=[CALL, call("see", {}, "c2")]), tool("two", tool_call_id="c2")
    ),
    "a call, a result, a call, a result": asked(ASK, CALLING, ANSWER, CALLING, ANSWER),
    "a call after a result waits": asked(ASK, CALLING, ANSWER, assistant("Again.", tool_calls=[CALL])),
    "a long exchange": asked(
        system("Be brief."),
        ASK,
        CALLING,
        ANSWER,
        assistant("Clear."),
        user("And in Łódź?"),
        assistant("", tool_calls=[call("act", {"city": "Łódź"}, "c9")]),
        tool("rain", tool_call_id="c9"),
        assistant("Rain."),
        user("Thanks"),
        tools=[WEATHER],
        enable_thinking=True,
    ),
    "an empty list of calls": asked(ASK, assistant("No.", tool_calls=[]), user("Oh")),
    "calls that are null": asked(ASK, assistant("No.", tool_calls=None), user("Oh")),
}

ARGUMENTS: dict[str, Any] = {
    "none": {},
    "null": None,
    "a string": '{"city": "Kraków"}',
    "a list": ["Kraków"],
    "hard text": {"text": HARD_TEXT, "Zed": 1, "a": 2},
    "scalars": {"t": True, "f": False, "n": None, "i": -3, "x": 1.5e300, "s": ""},
    "nested": {"b": {"y": [1, {"k": "v"}, []], "X": {}}, "a": [[True, None], "s"]},
}

RESULTS: dict[str, Message] = {
    "named by the message": tool("ok", name="other"),
    "named by the call first": tool("ok", name="other", tool_call_id="c1"),
    "for no call": tool("ok", tool_call_id="c7"),
    "for no call, named": tool("ok", tool_call_id="c7", name="other"),
    "for no call, with an empty name": tool("ok", tool_call_id="c7", name=""),
    "hard text": tool(HARD_TEXT, tool_call_id="c1"),
    "an empty string": tool("", tool_call_id="c1"),
    "null": tool(None, tool_call_id="c1"),
    "a number": tool(5, tool_call_id="c1"),
    "an object": tool({"sky": "clear"}, tool_call_id="c1"),
    "parts": tool([TEXT, {"type": "text", "text": "b"}], tool_call_id="c1"),
    "parts with media": tool([IMAGE, TEXT, {"type": "audio"}, {"type": "video"}], tool_call_id="c1"),
    "media by address": tool([{"type": "image_url"}, {"type": "input_audio"}], tool_call_id="c1"),
    "a film by address": tool([{"type": "video_url"}], tool_call_id="c1"),
    "no parts": tool([], tool_call_id="c1"),
    "a part whose text is null": tool([{"type": "text", "text": None}], tool_call_id="c1"),
}

RESPONSES: dict[str, Message] = {
    "an object": {"name": "act", "response": {"sky": "clear", "C": 21.5}},
    "a list": {"name": "act", "response": [1, None]},
    "a string": {"name": "act", "response": HARD_TEXT},
    "an empty object": {"name": "act", "response": {}},
    "nested": {"name": "act", "response": {"b": {"Y": [True]}, "A": None}},
    "without a name": {"response": "ok"},
    "with an empty name": {"name": "", "response": "ok"},
    "with a null name": {"name": None, "response": "ok"},
    "without a body": {"name": "act"},
}

OTHERS: dict[str, Variables] = {
    "neither side has an id": asked(ASK, assistant("", tool_calls=[call("act"), call("see")]), tool("ok")),
    "a result before any call": asked(tool("ok", name="act"), ASK),
    "a result after an answer": asked(ASK, assistant("Clear"), tool("ok", name="act"), user("x")),
    "a result after a question": asked(ASK, tool("ok", name="act"), assistant("Clear"), user("x")),
    "a response and the model's answer": kept(
        ASK, assistant("Clear", tool_calls=[CALL], tool_responses=[RESPONSES["an object"]])
    ),
    "a response and a tool message": asked(
        ASK,
        assistant("", tool_calls=[CALL], tool_responses=[RESPONSES["a string"]]),
        ANSWER,
        assistant("Clear"),
        user("Thanks"),
    ),
    "a response with thinking on": asked(
        ASK, assistant("", tool_responses=[RESPONSES["a list"]]), enable_thinking=True
    ),
}

CONVERSATIONS: dict[str, Variables] = {
    **{f"calls: {name}": variables for name, variables in (CALLS | OTHERS).items()},
    **{
        f"arguments: {name}": asked(ASK, assistant("", tool_calls=[call("act", arguments)]))
        for name, arguments in ARGUMENTS.items()
    },
    **{f"result: {name}": asked(ASK, CALLING, message) for name, message in RESULTS.items()},
    **{
        f"response: {name}": asked(ASK, assistant("", tool_responses=[response]))
        for name, response in RESPONSES.items()
    },
}
