from __future__ import annotations

import functools
import json
import os
import re
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import pytest
from hypothesis import given, settings
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gemmaspec.core.data import TEMPLATES
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.stack.build import template_for
from tests.conversations import CONVERSATIONS
from tests.conversations.building import (
    ASK,
    CALL,
    IMAGE,
    TEXT,
    WEATHER,
    Variables,
    asked,
    assistant,
    tool,
    user,
)
from tests.support.random_conversations import conversations
from tests.support.released_templates import RELEASES, read_released_templates

REFUSED = object()
SHIPPED = sorted(path.name for path in TEMPLATES.glob("*.jinja"))


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


@functools.cache
def environment() -> jinja2.Environment:
    """Jinja as transformers sets it up for chat templates (utils/chat_template_utils.py, 5.23)."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


@functools.cache
def compiled(text: str) -> jinja2.Template:
    return environment().from_string(text)


def render(text: str, variables: Variables) -> str | object:
    """The prompt; REFUSED when the template raises, whichever way."""
    try:
        return compiled(text).render(bos_token="<bos>", **variables)
    except Exception:
        return REFUSED


def shipped(name: str = "gemma4.jinja") -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def released() -> dict[str, str]:
    if os.environ.get("GEMMASPEC_OFFLINE") == "1":
        pytest.skip("GEMMASPEC_OFFLINE=1: the released templates are on the package index")
    try:
        return read_released_templates()
    except EnvironmentMissing as error:
        problem = f"{error.message}\n(GEMMASPEC_OFFLINE=1 skips what needs the package index)"
    pytest.fail(problem, pytrace=False)


@pytest.mark.network
@pytest.mark.parametrize("version", RELEASES)
def test_every_conversation_reads_as_with_the_template_of_the_release(version: str, released: dict[str, str]) -> None:
    ours = template_for(version).read_text(encoding="utf-8")
    for name, variables in CONVERSATIONS.items():
        assert render(ours, variables) == render(released[version], variables), name


@pytest.mark.network
@pytest.mark.parametrize("version", ["0.19.1", "0.21.0", "0.23.0", "0.33.0"])
@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(variables=conversations())
def test_random_conversations_read_as_with_the_template_of_the_release(
    version: str, released: dict[str, str], variables: Variables
) -> None:
    ours = template_for(version).read_text(encoding="utf-8")
    assert render(ours, variables) == render(released[version], variables)


@pytest.mark.network
def test_no_shipped_template_is_a_copy_of_a_released_one(released: dict[str, str]) -> None:
    def lines(text: str) -> set[str]:
        return {line.strip() for line in text.splitlines() if len(line.strip()) > 40}

    theirs = set().union(*map(lines, released.values()))
    for name in SHIPPED:
        assert len(lines(shipped(name)) & theirs) <= 0.1 * len(lines(shipped(name))), name


def test_at_least_forty_conversations_differ_from_each_other() -> None:
    assert len({render(shipped(), variables) for variables in CONVERSATIONS.values()}) > 150


def test_only_these_conversations_are_refused() -> None:
    refused = {name for name, variables in CONVERSATIONS.items() if render(shipped(), variables) is REFUSED}
    assert refused == {
        "arguments: a string",
        "arguments: a list",
        "result: an object",
        "result: a part whose text is null",
        "tools: flat",
    }


def test_an_empty_conversation_is_only_a_prompt() -> None:
    assert render(shipped(), asked()) == "<bos><|turn>model\n<|channel>thought\n<channel|>"


def test_a_question_opens_the_turn_of_a_model_that_does_not_think() -> None:
    assert render(shipped(), asked(user("Hello"))) == (
        "<bos><|turn>user\nHello<turn|>\n<|turn>model\n<|channel>thought\n<channel|>"
    )


def test_thinking_is_switched_on_in_the_system_turn() -> None:
    assert render(shipped(), asked(user("Hello"), enable_thinking=True)) == (
        "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHello<turn|>\n<|turn>model\n"
    )


def test_a_tool_is_declared_called_and_answered() -> None:
    conversation = asked(ASK, assistant("", tool_calls=[CALL]), tool("sun", tool_call_id="c1"), tools=[WEATHER])
    assert render(shipped(), conversation) == (
        '<bos><|turn>system\n<|tool>declaration:act{description:<|"|>Does act.<|"|>,parameters:{properties:'
        '{city:{description:<|"|>A city<|"|>,type:<|"|>STRING<|"|>}},required:[<|"|>city<|"|>],'
        'type:<|"|>OBJECT<|"|>}}<tool|><turn|>\n'
        "<|turn>user\nHow is the weather in Kraków?<turn|>\n"
        "<|turn>model\n<|channel>thought\n<channel|>"
        '<|tool_call>call:act{city:<|"|>Kraków<|"|>}<tool_call|>'
        '<|tool_response>response:act{value:<|"|>sun<|"|>}<tool_response|>'
    )


def test_media_stand_where_they_were_sent() -> None:
    assert render(shipped(), {"messages": [user([TEXT, IMAGE, TEXT])]}) == (
        "<bos><|turn>user\nLook at this.<|image|>Look at this.<turn|>\n"
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_vllm_passes_on_the_variables_that_a_template_names(name: str) -> None:
    # vLLM drops every template argument of a request that is not among these (renderers/hf.py, 0.32).
    named = jinja2.meta.find_undeclared_variables(environment().parse(shipped(name)))
    expected = {"messages", "tools", "bos_token", "add_generation_prompt", "enable_thinking"}
    assert named - {"preserve_thinking"} == expected
    assert ("preserve_thinking" in named) == (name == "gemma4.jinja")


@pytest.mark.parametrize("name", SHIPPED)
def test_vllm_sees_that_content_may_be_a_list(name: str) -> None:
    # vLLM looks for a loop over message['content'] in a loop over messages, or over a name that was set to a
    # slice of messages (renderers/hf.py, 0.32); without one, it joins the parts and loses the media.
    tree = environment().parse(shipped(name))
    outer = [loop for loop in tree.find_all(jinja2.nodes.For) if is_name(loop.iter, "conversation")]
    inner = [loop.iter for found in outer for loop in found.find_all(jinja2.nodes.For)]
    assert any(
        isinstance(over, jinja2.nodes.Getitem)
        and is_name(over.node, "message")
        and over.arg == jinja2.nodes.Const("content")
        for over in inner
    )
    set_to = [found.node for found in tree.find_all(jinja2.nodes.Assign) if is_name(found.target, "conversation")]
    assert is_name(set_to[0], "messages")


def is_name(node: jinja2.nodes.Node, name: str) -> bool:
    return isinstance(node, jinja2.nodes.Name) and node.name == name


def test_vllm_sees_that_developers_are_known() -> None:
    assert all("'developer'" in shipped(name) for name in SHIPPED)  # the very test of renderers/hf.py, 0.32


@pytest.mark.parametrize(
    ("older", "newer", "differing"),
    [
        (
            "gemma4-0.23.jinja",
            "gemma4.jinja",
            {"literal", "tool_call", "tool_message", "placeholder"},
        ),
        ("gemma4-0.21.jinja", "gemma4-0.23.jinja", {"tool_message"}),
        (
            "gemma4-0.19.jinja",
            "gemma4-0.21.jinja",
            {"parameters", "parameter", "members", "tool_message", "placeholder", "system_turn"},
        ),
    ],
)
def test_an_older_template_shares_all_macros_but_these(older: str, newer: str, differing: set[str]) -> None:
    old, new = macros(shipped(older)), macros(shipped(newer))
    assert old.keys() == new.keys()
    assert {name for name in old if old[name] != new[name]} == differing


def macros(text: str) -> dict[str, str]:
    return dict(re.findall(r"^{%- macro (\w+)(.*?)^{%- endmacro -%}", text, re.MULTILINE | re.DOTALL))
