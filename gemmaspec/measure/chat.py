"""Chat completions for checks: alone or several at once, each bounded in time and size, whatever the server sends."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from gemmaspec.engine.http import JSON, settings
from gemmaspec.engine.server import Server
from gemmaspec.errors import GemmaspecError, UsageError
from gemmaspec.measure.counters import Counters, read_counters, settled
from gemmaspec.smoke.answer import MAX_BYTES, ChatAnswer, Collector, Fault, Malformed, StreamError, error_text
from gemmaspec.smoke.check import Ask
from gemmaspec.smoke.row import body_text

_PATH: Final = "/v1/chat/completions"
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
    return asyncio.run(_ask_all(asking, asks, on_answer))


async def _ask_all(asking: ChatAsking, asks: Sequence[Ask], on_answer: Callable[[Ask], None]) -> list[ChatAnswer]:
    until = time.monotonic() + asking.run_s
    found: dict[int, ChatAnswer] = {}
    gate = asyncio.Semaphore(asking.together)
    async with httpx.AsyncClient(
        **settings(asking.server.base_url, timeout_s=asking.request_s, api_key=asking.api_key),
        limits=httpx.Limits(max_connections=asking.together),
    ) as client:

        async def one(place: int, ask: Ask) -> None:
            async with gate:
                left = min(asking.request_s, until - time.monotonic())
                if left <= 0:
                    found[place] = ChatAnswer(fault=Fault.NOT_ASKED)
                elif ask.alone and asking.counted:
                    found[place] = await _counted(client, asking, ask, left)
                else:
                    found[place] = await _answer(client, asking.server.model, ask, left)
                on_answer(ask)

        for place, ask in enumerate(asks):
            if ask.alone:
                await one(place, ask)
        await _all(one(place, ask) for place, ask in enumerate(asks) if not ask.alone)
    return [found[place] for place in range(len(asks))]


async def _all(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run jobs together; the first that fails ends all."""
    tasks = [asyncio.ensure_future(one) for one in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _counted(client: httpx.AsyncClient, asking: ChatAsking, ask: Ask, left: float) -> ChatAnswer:
    """Ask, and add what the server drafted for this one request; nothing is added where other requests ran."""
    before = await asyncio.to_thread(_counters, asking)
    answer = await _answer(client, asking.server.model, ask, left)
    if before is None or answer.fault or not answer.completion_tokens:
        return answer
    with contextlib.suppress(GemmaspecError):
        added = await asyncio.to_thread(
            settled,
            asking.server,
            before,
            tokens=answer.completion_tokens,
            timeout_s=_COUNTERS_S,
            api_key=asking.api_key,
        )
        if added.generated == answer.completion_tokens:
            return dataclasses.replace(answer, drafts=added.drafts, accepted=added.accepted, cached=added.cached)
    return answer


def _counters(asking: ChatAsking) -> Counters | None:
    try:
        return read_counters(asking.server, timeout_s=_COUNTERS_S, api_key=asking.api_key)
    except GemmaspecError:
        return None


async def _answer(client: httpx.AsyncClient, model: str, ask: Ask, left: float) -> ChatAnswer:
    """Return the answer to one request, or the fault that it ended in."""
    collector = Collector()
    try:
        async with asyncio.timeout(left):
            return await _exchange(client, body_text(ask.body, model=model), ask, collector)
    except (TimeoutError, httpx.TimeoutException):
        return collector.answer(fault=Fault.ENDLESS, said=f"after {left:.0f} s")
    except Malformed as error:
        return collector.answer(fault=Fault.MALFORMED, said=str(error))
    except StreamError as error:
        return collector.answer(fault=Fault.FAILED, said=str(error))
    except httpx.ConnectError:
        return ChatAnswer(fault=Fault.UNREACHABLE)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):
        return collector.answer(fault=Fault.BROKEN_OFF)


async def _exchange(client: httpx.AsyncClient, body: str, ask: Ask, collector: Collector) -> ChatAnswer:
    async with client.stream("POST", _PATH, content=body.encode(), headers=JSON) as response:
        whole = bytearray()
        total = 0
        async for part in response.aiter_raw():
            total += len(part)
            if total > MAX_BYTES:
                return collector.answer(fault=Fault.HUGE, status=response.status_code)
            if ask.streams and response.status_code == 200:
                collector.feed(part)
            else:
                whole += part
        if response.status_code != 200:
            return _refused(response.status_code, bytes(whole))
        if not ask.streams:
            collector.whole(bytes(whole))
        fault = None if collector.ended else Fault.BROKEN_OFF
        return collector.answer(status=response.status_code, fault=fault)


def _refused(status: int, body: bytes) -> ChatAnswer:
    if status == 401:
        raise UsageError("the server refuses the API key", hint="export VLLM_API_KEY with the key of the server")
    return ChatAnswer(
        fault=Fault.FAILED if status >= 500 or status < 400 else Fault.REFUSED, status=status, said=error_text(body)
    )
