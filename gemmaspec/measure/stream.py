"""One streamed chat completion, timed chunk by chunk."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core.errors import GemmaspecError, UsageError
from gemmaspec.run.engine.answer import count, error_text, said
from gemmaspec.run.engine.http import ChatClient
from gemmaspec.run.exchange import Arriving
from gemmaspec.run.ready.logline import printable

MAX_EVENT: Final = 4 * 1024 * 1024
"""Maximum bytes of one event of a stream; those of vLLM have a few hundred."""
MAX_STREAM: Final = 256 * 1024 * 1024


class Broken(GemmaspecError):
    """The server closed the connection, or its answer is not a stream of a chat completion."""


@dataclass(kw_only=True)
class Stream:
    """The timing of one request, in seconds on the clock of its run."""

    sent: float
    first: float = 0.0
    """The first chunk, with the first token."""
    last: float = 0.0
    """The last chunk that belongs to the answer."""
    ended: float = 0.0
    """The end of the stream."""
    chunks: int = 0
    """Number of chunks after the first: the number of steps, if the server sends each step separately."""
    characters: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    metrics: Mapping[str, Any] | None = None
    """vLLM's own metrics of the request, if it sends them (--per-request-spec-decode-metrics, 0.30.0+)."""


def streamed(chat: ChatClient, body: bytes, *, origin: float, timeout_s: float) -> Stream:
    """Send a request and read its stream to the end, which may take `timeout_s` from one event to the next.

    `origin` is the run's zero on time.perf_counter. Raise Broken if the server fails, UsageError if it rejects it.
    """
    try:
        with chat.sent(body, timeout_s=timeout_s) as arriving:
            stream = Stream(sent=arriving.sent - origin)
            if arriving.status != 200:
                raise _refused(arriving)
            for event, moment in _events(arriving):
                _take(stream, event, moment - origin)
                arriving.wait(timeout_s)
    except TimeoutError:
        raise Broken("the server sent nothing for longer than --request-timeout") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Broken(f"the server closed the connection during an answer ({_plain(error)})") from None
    stream.ended = time.perf_counter() - origin
    if not stream.completion_tokens:
        raise Broken("cannot count tokens, because the stream ended without its usage")
    return stream


def _plain(error: Exception) -> str:
    return printable(str(error))[:160] or "no reason given"


def _events(arriving: Arriving) -> Iterator[tuple[Any, float]]:
    """Yield the JSON of each event and the time at which its bytes arrived."""
    waiting, total = b"", 0
    for part in arriving.parts():
        moment = time.perf_counter()
        total += len(part)
        waiting += part
        if len(waiting) > MAX_EVENT or total > MAX_STREAM:
            raise Broken("the server's stream is too large for an answer")
        *whole, waiting = waiting.split(b"\n\n")
        for event in whole:
            if event.startswith(b"data: ") and event != b"data: [DONE]":
                yield _json(event[6:]), moment


def _json(event: bytes) -> Any:
    try:
        return json.loads(event)
    except (ValueError, RecursionError):
        raise Broken("the server's stream contains an event that is not JSON") from None


def _take(stream: Stream, event: Any, moment: float) -> None:
    if not isinstance(event, dict):
        raise Broken("the server's stream contains an event that is not a chunk of an answer")
    if error := event.get("error"):
        raise Broken(f"the request failed inside the server{_quoted(said(error))}")
    choices = event.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        _take_choice(stream, choices[0], moment)
    usage = event.get("usage")
    if isinstance(usage, dict):
        stream.prompt_tokens = count(usage.get("prompt_tokens"))
        stream.completion_tokens = count(usage.get("completion_tokens"))
    metrics = event.get("metrics")
    if isinstance(metrics, dict):
        stream.metrics = metrics


def _take_choice(stream: Stream, choice: Mapping[str, Any], moment: float) -> None:
    if not stream.first:
        stream.first = moment
    elif moment > stream.last:
        stream.chunks += 1
    stream.last = moment
    reason = choice.get("finish_reason")
    if isinstance(reason, str):
        stream.finish_reason = reason[:40]
    delta = choice.get("delta")
    if isinstance(delta, dict):
        text = delta.get("content")
    else:
        text = None
    stream.characters += len(text) if isinstance(text, str) else 0


def _refused(arriving: Arriving) -> GemmaspecError:
    body = b""
    for part in arriving.parts():
        body += part
        if len(body) > 65536:
            break
    why = _quoted(error_text(body))
    if arriving.status == 401:
        return UsageError("the server rejects the API key", hint="export VLLM_API_KEY=…    # the server's key")
    if arriving.status < 500:
        return UsageError(f"the server rejects a request (HTTP {arriving.status}){why}")
    return Broken(f"a request failed inside the server (HTTP {arriving.status}){why}")


def _quoted(text: str) -> str:
    if text:
        return f": {printable(text)[:300]}"
    return ""
