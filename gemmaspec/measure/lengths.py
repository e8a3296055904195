"""How long prompts are for a server, and prompts of a given length for it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core.errors import GemmaspecError, UsageError
from gemmaspec.measure.bench.filler import lengthened, padded
from gemmaspec.measure.bench.prompts import Prompt
from gemmaspec.measure.cell import Asking
from gemmaspec.measure.stream import Broken
from gemmaspec.run.engine.http import exchange
from gemmaspec.run.engine.server import Server
from gemmaspec.run.ready.logline import printable

_TIMEOUT_S: Final = 60.0
_VERSION_S: Final = 30.0
_TRIES: Final = 4
_MOST_TRIES: Final = 24
_NEAR: Final = 0.01
_FIRST_GUESS: Final = 3.6
"""Characters per token, as a first estimate."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What a server reports about its model."""

    name: str
    max_model_len: int | None


def served(server: Server, api_key: str | None) -> ServedModel:
    """Return the first model of /v1/models. Raises Broken if the server does not list one."""
    reply = exchange(server.base_url, "/v1/models", timeout_s=_TIMEOUT_S, api_key=api_key)
    document = reply.json() if reply.status == 200 else None
    if isinstance(document, dict):
        models = document.get("data")
    else:
        models = None
    if isinstance(models, list) and models and isinstance(models[0], dict):
        first = models[0]
    else:
        first = {}
    name, length = first.get("id"), first.get("max_model_len")
    if not isinstance(name, str):
        raise Broken(f"the server does not report its model (HTTP {reply.status} of /v1/models)")
    return ServedModel(name=name, max_model_len=length if isinstance(length, int) else None)


def version_of(server: Server, api_key: str | None) -> str | None:
    """Return the release that a server says it is; None if it does not say."""
    with contextlib.suppress(GemmaspecError):
        reply = exchange(server.base_url, "/version", timeout_s=_VERSION_S, api_key=api_key)
        if reply.status == 200:
            return version_in(reply.json())
        return None
    return None


def version_in(document: Any) -> str | None:
    """Return the version that a server's answer or a report names, as text for a terminal."""
    if isinstance(document, dict):
        version = document.get("version")
    else:
        version = None
    if isinstance(version, str) and version:
        return printable(version)[:80]
    return None


def count(asking: Asking, prompt: Prompt) -> int:
    """Return the tokens of a prompt with its template, by the server's /tokenize. Raises Broken if it has none."""
    body = {"model": asking.server.model, **prompt.body()}
    reply = exchange(asking.server.base_url, "/tokenize", body=body, timeout_s=_TIMEOUT_S, api_key=asking.api_key)
    document = reply.json() if reply.status == 200 else None
    if isinstance(document, dict):
        tokens = document.get("count")
    else:
        tokens = None
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        raise Broken(f"the server cannot count tokens (HTTP {reply.status} of /tokenize)")
    return tokens


def fitting(asking: Asking, prompts: Sequence[Prompt], *, limit: int | None) -> tuple[list[Prompt], list[str]]:
    """Return the prompts that leave room for the answer, and the ids of those that do not.

    Raises UsageError if none does.
    """
    if limit is None:
        return list(prompts), []
    answer = asking.asked.max_tokens
    room = limit - answer
    fits = {prompt.id: room > 0 and count(asking, prompt) <= room for prompt in prompts}
    kept = [prompt for prompt in prompts if fits[prompt.id]]
    if not kept:
        raise UsageError(
            f"no prompt fits: the server's context is {limit} tokens, {answer} of them for the answer",
            hint="use a smaller --max-tokens, shorter prompts, or a larger serve.max_model_len",
        )
    return kept, [prompt.id for prompt in prompts if not fits[prompt.id]]


def of_length(asking: Asking, prompts: Sequence[Prompt], tokens: int, *, exactly: bool = False) -> list[Prompt]:
    """Return prompts filled up to about `tokens` with text before them, without prompts that are already longer.

    `exactly`: to just as many, with words that mean nothing. Raises UsageError if all are longer.
    """
    make = _exactly if exactly else _of_length
    prompts_of_length = []
    for prompt in prompts:
        if made := make(asking, prompt, tokens):
            prompts_of_length.append(made)
    if not prompts_of_length:
        raise UsageError(f"--context {tokens}: every prompt is longer")
    return prompts_of_length


def _exactly(asking: Asking, prompt: Prompt, tokens: int) -> Prompt | None:
    words = 0
    for _ in range(_MOST_TRIES):
        made = padded(prompt, words)
        missing = tokens - count(asking, made)
        if not missing or not words + missing > 0:
            if missing:
                return None
            return made
        words += missing
    return None


def _of_length(asking: Asking, prompt: Prompt, tokens: int) -> Prompt | None:
    tokens_now = count(asking, prompt)
    if tokens_now > tokens * (1 + _NEAR):
        return None
    characters, best = int((tokens - tokens_now) * _FIRST_GUESS), prompt
    smallest = abs(tokens - tokens_now)
    for _ in range(_TRIES):
        if smallest <= tokens * _NEAR:
            break
        made = lengthened(prompt, characters)
        now = count(asking, made)
        if abs(tokens - now) < smallest or best is prompt:
            best, smallest = made, abs(tokens - now)
        characters = max(1, int(characters * (tokens - tokens_now) / max(now - tokens_now, 1)))
    return best
