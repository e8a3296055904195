"""One streamed chat completion, timed chunk by chunk.

A server's counters before and after what is measured.

Requests at a given concurrency: each worker sends the next request as one ends.

The requests of checks: alone or several at once, each with its time, and all with theirs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Final, Generic, TypeVar

from gemmaspec.core.errors import GemmaspecError, UsageError
from gemmaspec.core.live.sample import Counters, Sample
from gemmaspec.measure.smoke.check import Ask, body_text
from gemmaspec.run.engine.answer import ChatAnswer, Fault, count, error_text, said
from gemmaspec.run.engine.http import ChatClient
from gemmaspec.run.engine.server import Server
from gemmaspec.run.exchange import Arriving
from gemmaspec.run.ready.first_request import UnreadableMetrics, read_metrics
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
    stream.finish_reason = reason[:40] if isinstance(reason, str) else stream.finish_reason
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else None
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
    return f": {printable(text)[:300]}" if text else ""


_SETTLE_S: Final = 3.0
_POLL_S: Final = 0.03


def read_counters(server: Server, *, timeout_s: float, api_key: str | None) -> Counters:
    """Return the server's counters. Raises Broken if it does not report them, and what `exchange` raises."""
    return Counters.of(_sample(server, timeout_s=timeout_s, api_key=api_key))


def settled(server: Server, before: Counters, *, tokens: int, timeout_s: float, api_key: str | None) -> Counters:
    """Return the increase since `before`, once the server has counted `tokens` generated tokens or stops counting.

    vLLM counts a step shortly after it has sent it. Raises what `read_counters` raises, and Broken if the server was
    restarted.
    """
    until = time.monotonic() + _SETTLE_S
    while True:
        added = read_counters(server, timeout_s=timeout_s, api_key=api_key).since(before)
        if added is None:
            raise Broken("the server's counters decreased, because it was restarted during a cell")
        if added.generated >= tokens or time.monotonic() > until:
            return added
        time.sleep(_POLL_S)


def speculates(server: Server, *, timeout_s: float, api_key: str | None) -> bool:
    """Return whether the server has a draft. Raises Broken when it does not say, and what `exchange` raises."""
    return _sample(server, timeout_s=timeout_s, api_key=api_key).counts_drafts


def _sample(server: Server, *, timeout_s: float, api_key: str | None) -> Sample:
    try:
        return read_metrics(server, timeout_s=timeout_s, api_key=api_key)
    except UnreadableMetrics as error:
        raise Broken(error.message) from None


_LOOK_S: Final = 0.2
AT_ONCE: Final = 16
"""Servers that are looked at together, so that one which does not answer holds up none."""
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Load:
    """The result of a run: `streams` in the order of its requests, times relative to the run's start."""

    streams: tuple[Stream, ...]
    wall: float
    """Seconds from the first request to the last token."""
    idle: float
    """Seconds between two requests of one worker, summed over the workers: the client's own overhead."""


def run_load(
    base_url: str, bodies: Sequence[bytes], *, concurrency: int, timeout_s: float, api_key: str | None
) -> Load:
    """Send all requests, `concurrency` at once, and wait for them.

    Raises Broken or UsageError of the first failed request and aborts the others. Ctrl-C aborts all.
    """
    chat, origin = ChatClient(base_url, api_key), time.perf_counter()

    def send(body: bytes) -> tuple[int, Stream]:
        return threading.get_ident(), streamed(chat, body, origin=origin, timeout_s=timeout_s)

    done = together([partial(send, body) for body in bodies], at_once=concurrency, abort=chat.abort)
    by_worker: dict[int, list[Stream]] = defaultdict(list)
    for worker, stream in done:
        by_worker[worker].append(stream)
    idle = sum(later.sent - earlier.ended for of_one in by_worker.values() for earlier, later in pairwise(of_one))
    streams = tuple(stream for _, stream in done)
    wall = max(stream.last for stream in streams) - min(stream.sent for stream in streams)
    return Load(streams=streams, wall=wall, idle=idle)


def together(work: Sequence[Callable[[], _T]], *, at_once: int, abort: Callable[[], None] = lambda: None) -> list[_T]:
    """Do everything in threads, `at_once` at a time, and return the results in order.

    Raises what the first one that failed raised. That, or Ctrl-C, calls `abort`, which ends what is under way.
    """
    run = _Together(work)
    workers = [
        threading.Thread(target=run.work, name=f"gemmaspec-load-{n}", daemon=True)
        for n in range(min(at_once, len(work)))
    ]
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers) and not run.failed:
            for worker in workers:
                worker.join(_LOOK_S)
    except BaseException:
        run.failed = run.failed or Broken("interrupted")
        abort()
        raise
    if run.failed:
        abort()
        raise run.failed
    return [run.results[place] for place in range(len(work))]


@dataclass
class _Together(Generic[_T]):
    """The state that the workers share."""

    todo: Sequence[Callable[[], _T]]
    results: dict[int, _T] = field(default_factory=dict)
    failed: BaseException | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _begun: int = 0

    def work(self) -> None:
        """Do one after another until all are taken or one has failed."""
        try:
            while (place := self._take()) is not None:
                self.results[place] = self.todo[place]()
        except BaseException as error:  # handed to the caller's thread, which raises it
            with self._lock:
                self.failed = self.failed or error

    def _take(self) -> int | None:
        with self._lock:
            place, self._begun = self._begun, self._begun + 1
        return None if self.failed or place >= len(self.todo) else place


_COUNTERS_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class ChatAsking:
    """How a server is asked."""

    server: Server
    api_key: str | None
    together: int
    """Requests in flight at most."""
    request_s: float
    """Seconds that one request may take, from its first byte to its last."""
    run_s: float
    """Seconds that all of them may take."""
    counted: bool = False
    """Whether drafts and cached tokens of each request that is sent alone are counted."""


def ask_all(asking: ChatAsking, asks: Sequence[Ask], *, on_answer: Callable[[Ask], None]) -> list[ChatAnswer]:
    """Send all requests, those that are to be alone one after another, then the rest together.

    Returns an answer for each, in their order; a fault is part of the answer. Raises UsageError when the server
    refuses the API key.
    """
    chat, until = ChatClient(asking.server.base_url, asking.api_key), time.monotonic() + asking.run_s
    telling = threading.Lock()

    def put(ask: Ask) -> ChatAnswer:
        left = min(asking.request_s, until - time.monotonic())
        answer = ChatAnswer(fault=Fault.NOT_ASKED) if left <= 0 else _answer(chat, asking, ask, left)
        with telling:
            on_answer(ask)
        return answer

    order = sorted(range(len(asks)), key=lambda place: not asks[place].alone)
    alone = [partial(put, asks[place]) for place in order if asks[place].alone]
    rest = [partial(put, asks[place]) for place in order[len(alone) :]]
    answers = together(alone, at_once=1, abort=chat.abort) + together(rest, at_once=asking.together, abort=chat.abort)
    answer_of = dict(zip(order, answers, strict=True))
    return [answer_of[place] for place in range(len(asks))]


def _answer(chat: ChatClient, asking: ChatAsking, ask: Ask, left: float) -> ChatAnswer:
    """Ask, and add what the server drafted for this one request; nothing is added where other requests ran."""
    server, key = asking.server, asking.api_key
    before = None
    with contextlib.suppress(GemmaspecError):
        before = read_counters(server, timeout_s=_COUNTERS_S, api_key=key) if ask.alone and asking.counted else None
    answer = chat.answer(body_text(ask.body, model=server.model).encode(), timeout_s=left, streams=ask.streams)
    if answer.status == 401:
        raise UsageError("the server refuses the API key", hint="export VLLM_API_KEY with the key of the server")
    if before is None or answer.fault or not answer.completion_tokens:
        return answer
    with contextlib.suppress(GemmaspecError):
        tokens = answer.completion_tokens
        added = settled(server, before, tokens=tokens, timeout_s=_COUNTERS_S, api_key=key)
        if added.generated == tokens:
            return dataclasses.replace(answer, drafts=added.drafts, accepted=added.accepted, cached=added.cached)
    return answer
