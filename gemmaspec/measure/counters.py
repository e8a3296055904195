"""What a server has counted: tokens, drafts, and acceptance by position."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from gemmaspec.engine.server import Server
from gemmaspec.measure.stream import Broken
from gemmaspec.ready.http import exchange

_GENERATED: Final = "vllm:generation_tokens_total"
_DRAFTS: Final = "vllm:spec_decode_num_drafts_total"
_DRAFTED: Final = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"
_POSITIONS: Final = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
"""v1/metrics/loggers.py and v1/spec_decode/metrics.py, 0.19.0 to 0.33.0."""
_WANTED: Final = ("vllm:generation_tokens", "vllm:spec_decode_num_")
MAX_POSITIONS: Final = 1024
_SETTLE_S: Final = 3.0
_POLL_S: Final = 0.03


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counts since the server's start, summed over its engines."""

    generated: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    by_position: tuple[int, ...] = ()
    """Accepted tokens at each position."""

    def since(self, before: Counters) -> Counters:
        """What was added. Raises Broken where a count fell: the server was started anew meanwhile."""
        added = tuple(
            now - (before.by_position[i] if i < len(before.by_position) else 0)
            for i, now in enumerate(self.by_position)
        )
        found = Counters(
            generated=self.generated - before.generated,
            drafts=self.drafts - before.drafts,
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            by_position=added,
        )
        if min(found.generated, found.drafts, found.drafted, found.accepted, *added, 0) < 0:
            raise Broken("the server's counters fell: it was started anew in the middle of a cell")
        return found

    @property
    def rates(self) -> tuple[float, ...]:
        """r_1 … r_k: the share of drafts whose first i tokens were all accepted."""
        return tuple(count / self.drafts for count in self.by_position) if self.drafts else ()


def read_counters(server: Server, *, timeout_s: float, api_key: str | None) -> Counters:
    """What the server has counted. Raises Broken when it does not say, and what `exchange` raises."""
    reply = exchange(server, "/metrics", timeout_s=timeout_s, api_key=api_key)
    if reply.status != 200:
        raise Broken(f"/metrics answers {reply.status}")
    try:
        return counters_of(reply.body.decode("utf-8", "replace"))
    except (ValueError, OverflowError, IndexError, KeyError):
        raise Broken("the counters of /metrics cannot be read") from None


def counters_of(text: str) -> Counters:
    """The counters of a /metrics page. Raises ValueError when they cannot be read."""
    wanted = "\n".join(line for line in text.splitlines() if line.startswith(_WANTED))
    totals: dict[str, float] = defaultdict(float)
    positions: dict[int, float] = defaultdict(float)
    for family in text_string_to_metric_families(f"{wanted}\n"):
        for sample in family.samples:
            totals[sample.name] += sample.value
            if sample.name == _POSITIONS:
                positions[int(sample.labels["position"])] += sample.value
    values = [*totals.values(), *positions.values()]
    if not all(math.isfinite(one) and 0 <= one < 1e18 for one in values) or max(positions, default=0) >= MAX_POSITIONS:
        raise ValueError("a counter is negative or not a number")
    return Counters(
        generated=int(totals[_GENERATED]),
        drafts=int(totals[_DRAFTS]),
        drafted=int(totals[_DRAFTED]),
        accepted=int(totals[_ACCEPTED]),
        by_position=tuple(int(positions[i]) for i in range(max(positions, default=-1) + 1)),
    )


def settled(server: Server, before: Counters, *, tokens: int, timeout_s: float, api_key: str | None) -> Counters:
    """What was added to `before`, once the server has counted `tokens` generated tokens, or counts no more.

    vLLM counts a step shortly after it has sent it. Raises what `read_counters` raises.
    """
    until = time.monotonic() + _SETTLE_S
    while True:
        found = read_counters(server, timeout_s=timeout_s, api_key=api_key).since(before)
        if found.generated >= tokens or time.monotonic() > until:
            return found
        time.sleep(_POLL_S)


def speculates(server: Server, *, timeout_s: float, api_key: str | None) -> bool:
    """Whether the server has a draft: vLLM counts drafts, be it none so far, only where one is configured.

    Raises Broken when it does not say, and what `exchange` raises.
    """
    reply = exchange(server, "/metrics", timeout_s=timeout_s, api_key=api_key)
    if reply.status != 200:
        raise Broken(f"/metrics answers {reply.status}")
    return _DRAFTS.removesuffix("_total").encode() in reply.body
