"""GS6xx: reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.lint.rule import Issue, rule
from gemmaspec.lint.subject import Subject


@rule("GS601", "warning", any_release=True)
def thoughts_leak(subject: Subject) -> Iterator[Issue]:
    """Thinking is on, but nothing removes the reasoning from the answer."""
    chat = subject.profile.chat
    if chat.template_kwargs.get("enable_thinking") is True and not subject.value("--reasoning-parser"):
        message = (
            "thinking is on without a reasoning parser, so answers contain the reasoning and its <|channel> markers"
        )
        fix = "add chat.reasoning_parser: gemma4"
        yield Issue(path=("chat", "template_kwargs", "enable_thinking"), message=message, fix=fix)


@rule("GS602", "note", any_release=True)
def thoughts_on_request(subject: Subject) -> Iterator[Issue]:
    """Thinking is off unless a request turns it on; then nothing removes the reasoning from the answer."""
    if "enable_thinking" not in subject.profile.chat.template_kwargs and not subject.value("--reasoning-parser"):
        message = (
            "there is no reasoning parser, so a request that turns thinking on gets reasoning and markers in its answer"
        )
        fix = "add chat.reasoning_parser: gemma4, or set chat.template_kwargs: {enable_thinking: false}"
        yield Issue(path=("chat",), message=message, fix=fix)


@rule("GS603", "warning", any_release=True)
def foreign_parser(subject: Subject) -> Iterator[Issue]:
    """A parser for another model's markers."""
    for flag in ("--reasoning-parser", "--tool-call-parser"):
        given = subject.argument(flag)
        if given and given.value and given.value != "gemma4":
            message = f"{given.value!r} does not recognize the markers that Gemma 4 writes"
            yield Issue(path=given.path, message=message, fix="use gemma4")


@rule("GS604", "note", any_release=True)
def tools_without_template(subject: Subject) -> Iterator[Issue]:
    """Tool calls with a template that may not write tools in Gemma 4's form."""
    chat = subject.profile.chat
    if chat.tool_call_parser == "gemma4" and not chat.template:
        message = "tool calls depend on the template, but the checkpoint's own is used, which was not checked"
        yield Issue(path=_TOOLS, message=message, fix="add chat.template: gemma4, which matches the vLLM release")


_TOOLS: Final = ("chat", "tool_call_parser")
RULES: Final = (thoughts_leak, thoughts_on_request, foreign_parser, tools_without_template)
