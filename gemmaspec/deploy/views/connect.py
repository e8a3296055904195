"""`connect`: the settings by which other programs use a started server."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.deploy.kept import stacks
from gemmaspec.errors import GemmaspecError, UsageError
from gemmaspec.profile.load import load_profile
from gemmaspec.profile.model import Profile

KEY: Final = "VLLM_API_KEY"
_NONE: Final = "none"
"""What clients send where the server asks for no key: they want one."""
_ANSWER: Final = 4096
"""Tokens that are kept free for an answer."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a server answers, and what it can do."""

    name: str
    """The profile."""
    url: str
    """Without /v1."""
    model: str
    needs_key: bool
    context: int | None
    """Tokens of a conversation; None for the model's own limit."""
    tools: bool
    """Whether it calls tools."""

    @property
    def openai(self) -> str:
        """The address for OpenAI's clients."""
        return f"{self.url}/v1"

    @property
    def key(self) -> str:
        """The key as a shell writes it."""
        return f'"${KEY}"' if self.needs_key else _NONE


@dataclass(frozen=True, kw_only=True)
class Client:
    """One program, and its settings."""

    title: str
    where: str
    """Where the text belongs."""
    text: Callable[[Endpoint], str]
    agent: bool = False
    """Whether it is of no use without tool calls and a long context."""


def endpoint(name: str | None) -> Endpoint:
    """Return where a started profile answers; without a name, the only one.

    Raises UsageError if none or several were started, or if the name was not.
    """
    if name is None:
        names = stacks.names_of_stacks()
        if len(names) != 1:
            said = f"several profiles were started: {', '.join(names)}" if names else "no profile was started here"
            raise UsageError(said, hint="gemmaspec connect openai NAME" if names else "gemmaspec up")
        name = names[0]
    started = stacks.find(name)
    server, profile = started.server, None
    with contextlib.suppress(GemmaspecError):  # the profile may have changed since
        profile = load_profile(started.profile, overrides=started.overrides).profile
    return Endpoint(
        name=name,
        url=server.base_url,
        model=server.model,
        needs_key=server.needs_api_key,
        context=profile.serve.max_model_len if profile else None,
        tools=_calls_tools(profile),
    )


def _calls_tools(profile: Profile | None) -> bool:
    return bool(profile and profile.chat.tool_call_parser)


def settings(client: str, to: Endpoint) -> str:
    """Return the settings of a client. Raises UsageError for an unknown one."""
    if client not in CLIENTS:
        raise UsageError(f"unknown client {client!r}", hint="gemmaspec connect    # lists them")
    return CLIENTS[client].text(to)


def warnings(client: str, to: Endpoint) -> list[str]:
    """Return what the client needs and the profile does not give."""
    said = []
    if CLIENTS[client].agent and not to.tools:
        said.append(
            f"{CLIENTS[client].title} calls tools, and {to.name} has no tool parser: "
            "set chat: {tool_call_parser: gemma4, template: gemma4} in its profile"
        )
    if CLIENTS[client].agent and to.context and to.context < 32768:
        said.append(f"{CLIENTS[client].title} sends long prompts, and {to.name} takes {to.context} tokens")
    return said


def _openai(to: Endpoint) -> str:
    key = f'os.environ["{KEY}"]' if to.needs_key else f'"{_NONE}"'
    head = "import os\n\n" if to.needs_key else ""
    return f"""{head}from openai import OpenAI

client = OpenAI(base_url="{to.openai}", api_key={key})
answer = client.chat.completions.create(model={json.dumps(to.model)}, messages=[{{"role": "user", "content": "Hello"}}])
print(answer.choices[0].message.content)"""


def _environment(to: Endpoint) -> str:
    return _exports({"OPENAI_BASE_URL": to.openai, "OPENAI_API_KEY": to.key, "OPENAI_MODEL": to.model})


def _open_webui(to: Endpoint) -> str:
    key = '-e OPENAI_API_KEY="$VLLM_API_KEY"' if to.needs_key else f"-e OPENAI_API_KEY={_NONE}"
    return " ".join((
        "docker run -d --name open-webui --network host -v open-webui:/app/backend/data",
        f"-e PORT=3000 -e HOST=127.0.0.1 -e ENABLE_OLLAMA_API=False -e OPENAI_API_BASE_URL={to.openai} {key}",
        "ghcr.io/open-webui/open-webui:main",
    ))  # fmt: skip


def _continue(to: Endpoint) -> str:
    key = "${{ secrets.VLLM_API_KEY }}" if to.needs_key else _NONE
    tools = "\n    capabilities: [tool_use]" if to.tools else ""
    return f"""name: gemmaspec
version: 0.0.1
schema: v1
models:
  - name: {to.name}
    provider: openai
    model: {to.model}
    apiBase: {to.openai}
    apiKey: {key}
    roles: [chat, edit, apply]{tools}"""


def _opencode(to: Endpoint) -> str:
    model: dict[str, Any] = {"name": to.name, "tool_call": to.tools}
    if to.context:
        model["limit"] = {"context": to.context, "output": min(_ANSWER, to.context // 2)}
    key = f"{{env:{KEY}}}" if to.needs_key else _NONE
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "gemmaspec",
        "options": {"baseURL": to.openai, "apiKey": key},
        "models": {to.model: model},
    }
    content = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"gemmaspec/{to.model}",
        "provider": {"gemmaspec": provider},
    }
    return json.dumps(content, indent=2)


def _claude_code(to: Endpoint) -> str:
    tiers = {f"ANTHROPIC_DEFAULT_{tier}_MODEL": to.model for tier in ("OPUS", "SONNET", "HAIKU")}
    return _exports(
        {"ANTHROPIC_BASE_URL": to.url, "ANTHROPIC_AUTH_TOKEN": to.key, **tiers}
        | {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(min(_ANSWER, (to.context or 2 * _ANSWER) // 2))}
        | {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    )


def _litellm(to: Endpoint) -> str:
    key = f"os.environ/{KEY}" if to.needs_key else _NONE
    return f"""model_list:
  - model_name: {to.model}
    litellm_params:
      model: hosted_vllm/{to.model}
      api_base: {to.openai}
      api_key: {key}
general_settings:
  master_key: os.environ/LITELLM_MASTER_KEY    # export LITELLM_MASTER_KEY=sk-$(openssl rand -hex 24)"""


def _exports(variables: Mapping[str, str]) -> str:
    """Return lines for a shell; a reference to a variable stays one."""
    shown = {name: value if value == f'"${KEY}"' else shlex.quote(value) for name, value in variables.items()}
    return "\n".join(f"export {name}={value}" for name, value in shown.items())


CLIENTS: Final[Mapping[str, Client]] = {
    "openai": Client(title="OpenAI's Python client", where="a Python file; pip install openai", text=_openai),
    "environment": Client(title="programs that read OPENAI_BASE_URL", where="a shell", text=_environment),
    "open-webui": Client(title="Open WebUI", where="a shell; then open http://127.0.0.1:3000", text=_open_webui),
    "continue": Client(title="Continue", where="~/.continue/config.yaml", text=_continue),
    "opencode": Client(title="opencode", where="opencode.json in the project's folder", text=_opencode, agent=True),
    "claude-code": Client(title="Claude Code", where="a shell, before claude", text=_claude_code, agent=True),
    "litellm": Client(title="LiteLLM's proxy", where="config.yaml of litellm --config", text=_litellm),
}
