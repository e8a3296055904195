"""Measure one cell on a running server: warm-up, reference, load, reference."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemmaspec.core.launcher.probe import FRESH_S
from gemmaspec.core.live.sample import Counters
from gemmaspec.measure.bench.cells import Cell
from gemmaspec.measure.bench.prompts import REFERENCE, WARM_UP, Prompt
from gemmaspec.measure.bench.samples import MeasuredCell, RequestSample, SampleGroup
from gemmaspec.measure.bench.settings import Asked
from gemmaspec.measure.counters import read_counters, settled
from gemmaspec.measure.gpu import GpuWatch
from gemmaspec.measure.load import Load, run_load
from gemmaspec.measure.stream import Broken, Stream
from gemmaspec.run.engine.server import Server

WARM_TOKENS = 24
REFERENCE_TOKENS = 40
REFERENCE_S = 1.0
"""Seconds that the reference should last: on a fast server it is repeated, because one delay would count too much."""
REFERENCE_RUNS = 5
COUNTERS_S = 30.0
_LEAST_CACHED = 0.9
_BLOCK = 128
"""Tokens at the end of a prompt that a prefix cache may leave out: it has whole blocks, less one with a draft."""
_LEAST_STEP_S = 1e-4
"""No step of a model takes less; an answer that seems to take less came in one piece."""


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How requests are sent."""

    server: Server
    api_key: str | None
    asked: Asked
    calls_tools: bool = False
    """Whether the server parses tool calls; if not, vLLM rejects requests with an automatic tool choice."""

    def body(
        self, prompt: Mapping[str, Any], *, tokens: int | None = None, fixed: bool | None = None, salt: str = ""
    ) -> bytes:
        """Return a request's JSON. Its salt prevents hits in the prefix cache, but for requests with the same."""
        fixed = self.asked.ignore_eos if fixed is None else fixed
        body: dict[str, Any] = {
            "model": self.server.model,
            **prompt,
            "max_tokens": tokens or self.asked.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": salt or uuid.uuid4().hex,
        }
        if "tools" in prompt and not self.calls_tools:
            body["tool_choice"] = "none"
        if self.asked.temperature is not None:
            body["temperature"] = self.asked.temperature
        if fixed:
            body |= {"ignore_eos": True, "min_tokens": tokens or self.asked.max_tokens}
        return json.dumps(body).encode()

    def run(self, bodies: Sequence[bytes], concurrency: int) -> Load:
        """Send requests and wait for them."""
        return run_load(
            self.server.base_url,
            bodies,
            concurrency=concurrency,
            timeout_s=self.asked.request_timeout_s,
            api_key=self.api_key,
        )

    def counters(self) -> Counters:
        """Return the server's counters."""
        return read_counters(self.server, timeout_s=COUNTERS_S, api_key=self.api_key)


def measure_cell(
    asking: Asking,
    cell: Cell,
    prompts: Sequence[Prompt],
    *,
    drafts: bool,
    apart: bool = False,
    reference: Callable[[Asking], float] | None = None,
) -> MeasuredCell:
    """Measure a cell. `prompts` are sent in order, one request each.

    `apart`: each prompt is computed once, which times its first token; answers are timed from the cache after that,
    if it held them.

    At concurrency 1, each category is a group with its own counters. At a higher concurrency categories are mixed,
    because at the end of each group, when the last requests finish one by one, the load would drop. Raises Broken and
    UsageError.
    """
    reference = reference or reference_step
    warm_up(asking, cell.concurrency)
    before = reference(asking)
    here = asking.server.reached_at is None  # another machine's GPUs cannot be read from this one
    with GpuWatch() if here else contextlib.nullcontext() as watch:
        parts = []
        for category, of_category in _groups(prompts, cell):
            parts.append(_group(asking, cell, of_category, category=category, apart=apart))
    after = reference(asking)
    samples: list[RequestSample] = []
    groups: list[SampleGroup] = []
    first_waits: list[float] = []
    wall = idle = 0.0
    for part, load, group, waits in parts:
        for prompt, stream in zip(part, load.streams, strict=True):
            samples.append(_sample(prompt, stream, wall))
        groups.append(group)
        first_waits += waits
        wall += load.wall
        idle += load.idle
    if drafts and not any(group.drafts for group in groups):
        raise Broken("the server should speculate but counted no draft in a whole cell")
    gpu = watch.summary() if watch else None
    return MeasuredCell(
        samples=tuple(samples),
        groups=tuple(groups),
        wall=wall,
        idle=idle,
        reference_before=before,
        reference_after=after,
        gpu=gpu,
        first_waits=tuple(first_waits),
    )


def warm_up(asking: Asking, concurrency: int) -> None:
    """Send `concurrency` requests at once, twice, with prompts that are never measured."""
    questions = itertools.islice(itertools.cycle(WARM_UP), 2 * concurrency)
    bodies = [asking.body(_question(text), tokens=WARM_TOKENS, fixed=True) for text in questions]
    asking.run(bodies, concurrency)


def reference_step(asking: Asking) -> float:
    """Return the seconds per step of the reference request without other load: the median over its repetitions.

    A step is the time from the first token to the last over the steps between them, on the server's own clock where it
    reports that: chunks arrive in bursts, or all at once, where the server computes faster than it writes or something
    on the way buffers them. Raise Broken if no repetition can be timed.
    """
    return median_step(_reference(asking) for _ in range(REFERENCE_RUNS))


def median_step(repetitions: Iterable[tuple[float, int]]) -> float:
    """Return the median seconds per step; no more repetitions, each its seconds and steps, are taken than needed.

    Raise Broken if none can be timed.
    """
    steps_s: list[float] = []
    lasted = 0.0
    for seconds, steps in repetitions:
        if seconds > 0 and steps > 0 and seconds >= _LEAST_STEP_S * steps:
            steps_s.append(seconds / steps)
            lasted += seconds
        if lasted >= REFERENCE_S:
            break
    if not steps_s:
        raise Broken("cannot time the steps of the reference request, because its answer came in one piece")
    return statistics.median(steps_s)


def _reference(asking: Asking) -> tuple[float, int]:
    """Send the reference request once; return the seconds from its first token to the last, and the steps."""
    before = asking.counters()
    load = asking.run([asking.body(_question(REFERENCE), tokens=REFERENCE_TOKENS, fixed=True)], 1)
    (answer,) = load.streams
    added = settled(
        asking.server, before, tokens=answer.completion_tokens, timeout_s=COUNTERS_S, api_key=asking.api_key
    )
    steps = added.drafts or answer.completion_tokens - 1
    alone = added.generated == answer.completion_tokens
    return added.decode_seconds if alone and added.decode_seconds > 0 else answer.last - answer.first, steps


def _question(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _groups(prompts: Sequence[Prompt], cell: Cell) -> list[tuple[str | None, list[Prompt]]]:
    if cell.concurrency > 1:
        return [(None, list(prompts))]
    by_category: dict[str | None, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    return list(by_category.items())


def _group(
    asking: Asking, cell: Cell, prompts: Sequence[Prompt], *, category: str | None, apart: bool
) -> tuple[Sequence[Prompt], Load, SampleGroup, Sequence[float]]:
    salts = [uuid.uuid4().hex for _ in prompts]
    bodies = [asking.body(prompt.body(), salt=salt) for prompt, salt in zip(prompts, salts, strict=True)]
    waits: Sequence[float] = _computed_once(asking, cell, prompts, salts) if apart else ()
    before = asking.counters()
    load = asking.run(bodies, cell.concurrency)
    tokens = sum(stream.completion_tokens for stream in load.streams)
    added = settled(asking.server, before, tokens=tokens, timeout_s=COUNTERS_S, api_key=asking.api_key)
    foreign = _of_others(added.generated - tokens, load)
    group = SampleGroup(
        category=category,
        drafts=added.drafts,
        drafted=added.drafted,
        accepted=added.accepted,
        by_position=added.by_position,
        foreign_tokens=foreign,
        decode_seconds=added.decode_seconds if not foreign else 0.0,
    )
    read = sum(stream.prompt_tokens for stream in load.streams)
    if added.cached < _LEAST_CACHED * read - len(bodies) * _BLOCK:
        waits = ()  # the cache did not hold them, so that these answers waited for prompts like any others
    return prompts, load, group, waits


def _of_others(tokens: int, load: Load) -> int:
    """Return how many of the tokens that nobody here asked for another client did.

    A container's health check asks for one token where nothing moved for a minute (core/launcher/probe.py), so one a
    minute and one before it are its own.
    """
    if not load.streams:
        return max(0, tokens)
    lasted = max(stream.last for stream in load.streams) - min(stream.sent for stream in load.streams)
    return max(0, tokens - 1 - int(lasted // FRESH_S))


def _computed_once(asking: Asking, cell: Cell, prompts: Sequence[Prompt], salts: Sequence[str]) -> list[float]:
    """Have each prompt computed, as many at once as the cell has requests; return the waits for the first token."""
    waits: list[float] = []
    for began in range(0, len(prompts), cell.concurrency):
        part = zip(prompts[began : began + cell.concurrency], salts[began:], strict=False)
        bodies = [asking.body(prompt.body(), tokens=1, fixed=True, salt=salt) for prompt, salt in part]
        waits += [stream.first - stream.sent for stream in asking.run(bodies, cell.concurrency).streams]
    return waits


def _sample(prompt: Prompt, stream: Stream, offset: float) -> RequestSample:
    return RequestSample(
        prompt=prompt.id,
        category=prompt.category,
        sent=stream.sent + offset,
        first=stream.first + offset,
        last=stream.last + offset,
        chunks=stream.chunks,
        prompt_tokens=stream.prompt_tokens,
        completion_tokens=stream.completion_tokens,
        finish_reason=stream.finish_reason,
        characters=stream.characters,
        accepted=_histogram(stream.metrics),
    )


def _histogram(metrics: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Return the number of steps that accepted 0 … k tokens (`acceptance_histogram`, vLLM 0.30.0 and later)."""
    if metrics:
        spec = metrics.get("speculative_decoding")
    else:
        spec = None
    if isinstance(spec, dict):
        histogram = spec.get("acceptance_histogram")
    else:
        histogram = None
    if not isinstance(histogram, list) or len(histogram) > 1024:
        return ()
    for count in histogram:
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            return ()
    return tuple(histogram)
