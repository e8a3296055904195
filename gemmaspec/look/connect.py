"""`connect`: the settings by which other programs use a started server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import yaml
from jinja2 import Environment, StrictUndefined
from pydantic import BaseModel, ConfigDict

from gemmaspec.core.data import TEMPLATES
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.foreign_words import nearest
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.served_profile import profile_of

_AUTH: Final = ' -H "Authorization: Bearer $VLLM_API_KEY"'
_ANSWER: Final = 4096
"""Tokens that are kept free for an answer."""


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
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


class Client(BaseModel):
    """One program, and its settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    where: str
    """Where the text belongs."""
    text: str
    """A Jinja template."""
    agent: bool = False
    """Whether it is of no use without tool calls and a long context."""
    note: str = ""
    """What the settings cannot say, a Jinja template too: hosted tools, what to choose in its window."""


def endpoint(name: str | None) -> ServerAddress:
    """Return where a started profile answers; without a name, the only one.

    Raises UsageError if none or several were started, or if the name was not.
    """
    if name is None:
        names = stacks.names_of_stacks()
        if len(names) != 1:
            if names:
                problem = f"several profiles were started: {', '.join(names)}"
            else:
                problem = "no profile was started here"
            raise UsageError(problem, hint="gemmaspec connect openai NAME" if names else "gemmaspec up")
        name = names[0]
    started = stacks.find(name)
    server, profile = started.server, profile_of(started)
    return ServerAddress(
        name=name,
        url=server.base_url,
        model=server.model,
        needs_key=server.needs_api_key,
        context=profile.serve.max_model_len if profile else None,
        tools=bool(profile and profile.chat.tool_call_parser),
    )


def check_client(client: str) -> None:
    """Raise UsageError for an unknown client."""
    from gemmaspec.look.monitors import MONITORS

    known = (*CLIENTS, *MONITORS)
    if client not in known:
        if client in profile_names() or client in stacks.names_of_stacks():
            hint = f"gemmaspec connect openai {client}"
            raise UsageError(f"{client} is a profile, and the client comes before it", hint=hint)
        near = nearest(client, known) or _with_word(client, known)
        if near:
            meant = f"did you mean {near}?"
        else:
            meant = f"the known ones are {', '.join(known)}"
        raise UsageError(f"unknown client {client!r}; {meant}", hint="gemmaspec connect")


def _with_word(client: str, known: Sequence[str]) -> str | None:
    """Return the client whose name has what was typed, or what was typed has: claude, webui, openai-python."""
    typed = client.lower()
    if len(typed) < 3:
        return None
    return next((name for name in known if typed in name or name in typed), None)


def settings(client: str, to: ServerAddress) -> str:
    """Return the settings of a client. Raises UsageError for an unknown one."""
    check_client(client)
    return _filled(CLIENTS[client].text, to)


def where(client: str, to: ServerAddress) -> str:
    """Return where a client's settings belong."""
    return _filled(CLIENTS[client].where, to)


def note(client: str, to: ServerAddress) -> str:
    """Return what a client's settings cannot say; empty for most."""
    return _filled(CLIENTS[client].note, to)


def _filled(template: str, to: ServerAddress) -> str:
    # half of a short context is left to the prompt
    output = min(_ANSWER, (to.context or 2 * _ANSWER) // 2)
    return _JINJA.from_string(template).render(
        url=to.url, openai=f"{to.url}/v1", model=to.model, name=to.name, keyed=to.needs_key, tools=to.tools,
        context=to.context, output=output, auth=_AUTH if to.needs_key else "",
    ).rstrip()  # fmt: skip


def warnings(client: str, to: ServerAddress) -> list[str]:
    """Return what the client needs and the profile does not give."""
    warnings = []
    if CLIENTS[client].agent and not to.tools:
        warnings.append(
            f"{CLIENTS[client].title} calls tools, and {to.name} has no tool parser: "
            "set chat: {tool_call_parser: gemma4, template: gemma4} in its profile"
        )
    if CLIENTS[client].agent and to.context and to.context < 32768:
        warnings.append(f"{CLIENTS[client].title} sends long prompts, and {to.name} takes {to.context} tokens")
    return warnings


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _jinja() -> Environment:
    made = Environment(undefined=StrictUndefined, autoescape=False)  # noqa: S701 - no HTML; values are quoted by filters
    made.filters.update(js=_as_json, sh=shlex.quote)
    return made


_JINJA: Final = _jinja()
CLIENTS: Final[Mapping[str, Client]] = {
    name: Client(**fields)
    for name, fields in yaml.safe_load((TEMPLATES / "clients.yaml").read_text(encoding="utf-8")).items()
}
