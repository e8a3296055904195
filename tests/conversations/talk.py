"""Conversations without tools: plain ones, system turns, media, thoughts."""

from __future__ import annotations

from tests.conversations.building import (
    ANSWER,
    ASK,
    CALL,
    HARD_TEXT,
    IMAGE,
    TEXT,
    WEATHER,
    Variables,
    asked,
    assistant,
    kept,
    system,
    user,
)

PLAIN: dict[str, Variables] = {
    "one question": asked(user("Hello")),
    "one question without generation prompt": kept(user("Hello")),
    "generation prompt left out": {"messages": [user("Hello")]},
    "a question with thinking on": asked(user("Hello"), enable_thinking=True),
    "a question with thinking turned off": asked(user("Hello"), enable_thinking=False),
    "a question answered": kept(user("Hello"), assistant("Hi")),
    "a question answered and another": asked(user("Hello"), assistant("Hi"), user("Bye")),
    "the same with thinking on": asked(user("Hello"), assistant("Hi"), user("Bye"), enable_thinking=True),
    "a trailing assistant message to go on from": asked(user("Count"), assistant("One, two")),
    "two assistant messages in a row": asked(user("Go"), assistant("One"), assistant("Two"), user("And?")),
    "three assistant messages at the end": kept(user("Go"), assistant("1"), assistant("2"), assistant("3")),
    "two user messages in a row": asked(user("One"), user("Two")),
    "spaces around everything": asked(system("  S \n"), user("\n\n  U  "), assistant("  A\n"), user(" \t")),
    "empty content": asked(system(""), user(""), assistant(""), user("")),
    "an empty list of parts": asked(user([]), assistant([]), user([])),
    "content that is null": asked(user(None), assistant(None), user("x")),
    "content left out": asked({"role": "user"}, {"role": "assistant"}, user("x")),
    "unicode and hard text": asked(user(HARD_TEXT), assistant(HARD_TEXT), user("ok")),
    "html is not escaped": asked(user("<b>a & b</b>")),
    "the role of the model is spelled model": asked(user("a"), {"role": "model", "content": "b"}, user("c")),
    "an unknown role": asked({"role": "critic", "content": "Hm"}, user("a")),
    "no user message": asked(assistant("Hi", reasoning="r")),
    "thinking is null": asked(user("Hello"), enable_thinking=None),
}

SYSTEM: dict[str, Variables] = {
    "a system turn": asked(system("Be brief."), user("Hello")),
    "a developer turn": asked({"role": "developer", "content": "Be brief."}, user("Hello")),
    "a system turn with thinking on": asked(system("Be brief."), user("Hello"), enable_thinking=True),
    "a system turn of parts": asked(system([TEXT, {"type": "text", "text": "Be brief."}]), user("Hello")),
    "a system turn of one part": asked(system([{"type": "text", "text": "Be brief."}]), user("Hello")),
    "a system turn without text": asked(system([IMAGE]), user("Hello")),
    "a system turn of null": asked(system(None), user("Hello")),
    "a system turn in the middle": asked(user("Hello"), assistant("Hi"), system("Be brief."), user("Bye")),
    "a developer turn in the middle": asked(user("Hello"), {"role": "developer", "content": "Be brief."}),
    "two system turns": asked(system("One"), system("Two"), user("Hello")),
    "system and tools": asked(system("Be brief."), ASK, tools=[WEATHER]),
    "system and tools with thinking on": asked(system("Brief."), ASK, tools=[WEATHER], enable_thinking=True),
    "system alone": asked(system("Be brief.")),
}

MEDIA: dict[str, Variables] = {
    "text in one part": asked(user([TEXT])),
    "text in two parts": asked(user([TEXT, TEXT])),
    "a picture and text": asked(user([IMAGE, TEXT])),
    "text, a picture, text": asked(user([TEXT, IMAGE, TEXT])),
    "a picture by address": asked(user([{"type": "image_url", "image_url": {"url": "a.png"}}, TEXT])),
    "a sound": asked(user([TEXT, {"type": "audio"}])),
    "a sound as OpenAI spells it": asked(user([TEXT, {"type": "input_audio", "input_audio": {"data": ""}}])),
    "a film": asked(user([{"type": "video"}, TEXT])),
    "a film by address is not placed": asked(user([{"type": "video_url", "video_url": {"url": "a"}}, TEXT])),
    "an unknown kind of part": asked(user([{"type": "hologram"}, TEXT])),
    "everything at once": asked(user([IMAGE, IMAGE, {"type": "audio"}, {"type": "video"}, TEXT])),
    "a picture shown by the model": asked(user("Draw"), assistant([IMAGE, TEXT]), user("Nice")),
    "a call beside a picture": asked(ASK, assistant([TEXT, IMAGE], tool_calls=[CALL])),
    "a call beside a picture, answered": asked(ASK, assistant([IMAGE], tool_calls=[CALL]), ANSWER),
    "a part without a type": asked(user([{"text": "lost"}, TEXT])),
}

THOUGHTS: dict[str, Variables] = {
    "a thought in the text is dropped": asked(user("a"), assistant("<|channel>thought\nhm\n<channel|> Yes"), user("b")),
    "thoughts in parts are dropped": asked(
        user("a"), assistant([{"type": "text", "text": "x<|channel>y<channel|>z"}]), user("b")
    ),
    "several thoughts are dropped": asked(
        user("a"), assistant("1<|channel>2<channel|>3<|channel>4<|channel>5<channel|>6"), user("b")
    ),
    "an open thought is dropped": asked(user("a"), assistant("Yes <|channel>thought\nhm"), user("b")),
    "a lone closing mark": asked(user("a"), assistant("<channel|>Yes"), user("b")),
    "a user may write the marks": asked(user("What is <|channel>thought<channel|>?")),
    "reasoning of an answered question": asked(user("a"), assistant("b", reasoning="why"), user("c")),
    "reasoning after the last question": kept(user("a"), assistant("b", reasoning="why")),
    "reasoning_content after the last question": kept(user("a"), assistant("b", reasoning_content="why")),
    "reasoning goes before reasoning_content": kept(
        user("a"), assistant("b", reasoning="one", reasoning_content="two")
    ),
    "empty reasoning": kept(user("a"), assistant("b", reasoning="", reasoning_content="")),
    "a field named thinking": kept(user("a"), assistant("b", thinking="why")),
    "reasoning kept on request": asked(user("a"), assistant("b", reasoning="why"), user("c"), preserve_thinking=True),
    "reasoning with thinking on": asked(user("a"), assistant("b", reasoning="why"), user("c"), enable_thinking=True),
    "reasoning before a call": asked(ASK, assistant(None, reasoning="why", tool_calls=[CALL])),
    "reasoning_content before a call": asked(ASK, assistant(None, reasoning_content="w", tool_calls=[CALL])),
    "reasoning before an answered call": asked(ASK, assistant(None, reasoning="w", tool_calls=[CALL]), ANSWER),
    "the same with thinking on": asked(
        ASK, assistant(None, reasoning="w", tool_calls=[CALL]), ANSWER, enable_thinking=True
    ),
    "reasoning before an old call": asked(
        ASK, assistant(None, reasoning="w", tool_calls=[CALL]), ANSWER, assistant("Clear"), user("Thanks")
    ),
    "an old call's reasoning kept": asked(
        ASK,
        assistant(None, reasoning="w", tool_calls=[CALL]),
        ANSWER,
        assistant("Clear"),
        user("Thanks"),
        preserve_thinking=True,
    ),
    "reasoning at every step": asked(
        ASK,
        assistant(None, reasoning="first", tool_calls=[CALL]),
        ANSWER,
        assistant(None, reasoning="second", tool_calls=[CALL]),
        ANSWER,
        tools=[WEATHER],
    ),
}

CONVERSATIONS: dict[str, Variables] = {
    f"{kind}: {name}": variables
    for kind, group in (("plain", PLAIN), ("system", SYSTEM), ("media", MEDIA), ("thoughts", THOUGHTS))
    for name, variables in group.items()
}
