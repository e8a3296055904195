"""A server's counters: tokens, drafts, and acceptance by position."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from gemmaspec.engine.server import Server
from gemmaspec.live.sample import Sample
from gemmaspec.measure.stream import Broken
from gemmaspec.ready.metrics import UnreadableMetrics, read_metrics

_SETTLE_S: Final = 3.0
_POLL_S: Final = 0.03


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counts since the server's start, summed over its engines."""

    generated: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    decode_seconds: float = 0.0
    """Seconds from the first token to the last of all ended answers; 0 from a server that does not report them."""
    cached: int = 0
    """Tokens of prompts that were read from the prefix cache."""
    by_position: tuple[int, ...] = ()
    """Accepted tokens at each position."""

    def since(self, before: Counters) -> Counters:
        """Return the increase. Raises Broken if a count decreased, because the server was restarted."""
        added = tuple(
            now - (before.by_position[i] if i < len(before.by_position) else 0)
            for i, now in enumerate(self.by_position)
        )
        found = Counters(
            generated=self.generated - before.generated,
            drafts=self.drafts - before.drafts,
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            decode_seconds=self.decode_seconds - before.decode_seconds,
            cached=self.cached - before.cached,
            by_position=added,
        )
        if min(found.generated, found.drafts, found.drafted, found.accepted, *added, 0) < 0:
            raise Broken("the server's counters decreased, because it was restarted during a cell")
        return found

    @property
    def rates(self) -> tuple[float, ...]:
        """r_1 … r_k: the share of drafts whose first i tokens were all accepted."""
        return tuple(count / self.drafts for count in self.by_position) if self.drafts else ()


def read_counters(server: Server, *, timeout_s: float, api_key: str | None) -> Counters:
    """Return the server's counters. Raises Broken if it does not report them, and what `exchange` raises."""
    return counters_of(_sample(server, timeout_s=timeout_s, api_key=api_key))


def counters_of(sample: Sample) -> Counters:
    """Return the counters of a reading that measurements need."""
    return Counters(
        generated=int(sample.generation_tokens),
        drafts=int(sample.drafts),
        drafted=int(sample.draft_tokens),
        accepted=int(sample.accepted_tokens),
        decode_seconds=sample.decode_seconds,
        cached=int(sample.prefix_hits),
        by_position=tuple(map(int, sample.accepted_by_position)),
    )


def settled(server: Server, before: Counters, *, tokens: int, timeout_s: float, api_key: str | None) -> Counters:
    """Return the increase since `before`, once the server has counted `tokens` generated tokens or stops counting.

    vLLM counts a step shortly after it has sent it. Raises what `read_counters` raises.
    """
    until = time.monotonic() + _SETTLE_S
    while True:
        found = read_counters(server, timeout_s=timeout_s, api_key=api_key).since(before)
        if found.generated >= tokens or time.monotonic() > until:
            return found
        time.sleep(_POLL_S)


def speculates(server: Server, *, timeout_s: float, api_key: str | None) -> bool:
    """Return whether the server has a draft. Raises Broken when it does not say, and what `exchange` raises."""
    return _sample(server, timeout_s=timeout_s, api_key=api_key).counts_drafts


def _sample(server: Server, *, timeout_s: float, api_key: str | None) -> Sample:
    try:
        return read_metrics(server, timeout_s=timeout_s, api_key=api_key)
    except UnreadableMetrics as error:
        raise Broken(error.message) from None
