"""GS6xx: chat, thoughts and tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.rule import Issue, Subject, rule


@rule("GS601", "warning", any_release=True, of_gemma=True)
def thoughts_leak(subject: Subject) -> Iterator[Issue]:
    """Thinking is on, but nothing removes the reasoning from the answer."""
    chat = subject.profile.chat
    if chat.template_kwargs.get("enable_thinking") is True and not subject.command.value("--reasoning-parser"):
        message = (
            "thinking is on without a reasoning parser, so answers contain the reasoning and its <|channel> markers"
        )
        fix = "add chat.reasoning_parser: gemma4"
        yield Issue(path=("chat", "template_kwargs", "enable_thinking"), message=message, fix=fix)


@rule("GS601", "note", any_release=True, of_gemma=True)
def thoughts_on_request(subject: Subject) -> Iterator[Issue]:
    """Thinking is off unless a request turns it on; then nothing removes the reasoning from the answer."""
    if "enable_thinking" not in subject.profile.chat.template_kwargs and not subject.command.value(
        "--reasoning-parser"
    ):
        message = (
            "there is no reasoning parser, so a request that turns thinking on gets reasoning and markers in its answer"
        )
        fix = "add chat.reasoning_parser: gemma4, or set chat.template_kwargs: {enable_thinking: false}"
        yield Issue(path=("chat",), message=message, fix=fix)


@rule("GS603", "warning", any_release=True, of_gemma=True)
def foreign_parser(subject: Subject) -> Iterator[Issue]:
    """A parser for another model's markers."""
    for flag in ("--reasoning-parser", "--tool-call-parser"):
        given = subject.command.argument(flag)
        if given and given.value and given.value != "gemma4":
            message = f"{given.value!r} does not recognize the markers that Gemma 4 writes"
            yield Issue(path=given.path, message=message, fix="use gemma4")


@rule("GS604", "note", any_release=True, of_gemma=True)
def tools_without_template(subject: Subject) -> Iterator[Issue]:
    """Tool calls with a template that may not write tools in Gemma 4's form."""
    chat = subject.profile.chat
    if chat.tool_call_parser == "gemma4" and not chat.template:
        message = "tool calls depend on the template, but the checkpoint's own is used, which was not checked"
        yield Issue(path=_TOOLS, message=message, fix="add chat.template: gemma4, which matches the vLLM release")


@rule("GS606", "note", any_release=True)
def no_tool_parser(subject: Subject) -> Iterator[Issue]:
    """No tool call parser: what agents send is refused."""
    if not subject.command.value("--tool-call-parser"):
        message = "there is no tool call parser, so vLLM answers agents, whose requests bring tools, with HTTP 400"
        of_gemma = "add chat: {tool_call_parser: gemma4, template: gemma4}"
        if subject.is_other_family:
            fix = "name the model's own as chat.tool_call_parser"
        else:
            fix = of_gemma
        yield Issue(path=("chat",), message=message, fix=fix)


_TOOLS: Final = ("chat", "tool_call_parser")


@rule("GS605", "warning")
def streamed_tool_calls(subject: Subject) -> Iterator[Issue]:
    """Up to 0.23, the Gemma 4 tool parser loses arguments if several tokens arrive at once (#41967, #42875)."""
    given = subject.command.argument("--tool-call-parser")
    if given and given.value == "gemma4" and subject.resolved.method and subject.runs("<0.24"):
        message = (
            f"the parser of vLLM {subject.vllm} loses arguments of streamed tool calls if several tokens arrive at once"
        )
        yield Issue(path=given.path, message=message, fix="use vLLM 0.24 or later, or do not stream answers with tools")
