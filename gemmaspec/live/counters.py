"""What of a reading of /metrics an answer, a measurement or `status` needs."""

from __future__ import annotations

from dataclasses import dataclass

from gemmaspec.live.sample import Sample


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counts since the server's start, summed over its engines; all zero if it counts nothing."""

    generated: int = 0
    drafts: int = 0
    """Number of drafts."""
    drafted: int = 0
    """Proposed tokens."""
    accepted: int = 0
    """Proposed tokens that the target accepted."""
    decode_seconds: float = 0.0
    """Seconds from the first token to the last of all ended answers; 0 from a server that does not report them."""
    cached: int = 0
    """Tokens of prompts that were read from the prefix cache."""
    by_position: tuple[int, ...] = ()
    """Accepted tokens at each position."""

    @classmethod
    def of(cls, sample: Sample) -> Counters:
        """Return the counters in a reading."""
        return cls(
            generated=int(sample.generation_tokens),
            drafts=int(sample.drafts),
            drafted=int(sample.draft_tokens),
            accepted=int(sample.accepted_tokens),
            decode_seconds=sample.decode_seconds,
            cached=int(sample.prefix_hits),
            by_position=tuple(map(int, sample.accepted_by_position)),
        )

    def since(self, before: Counters) -> Counters | None:
        """Return the increase; None if a count decreased, because the server was restarted."""
        earlier = (*before.by_position, *(0,) * len(self.by_position))
        added = Counters(
            generated=self.generated - before.generated,
            drafts=self.drafts - before.drafts,
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            decode_seconds=self.decode_seconds - before.decode_seconds,
            cached=self.cached - before.cached,
            by_position=tuple(now - first for now, first in zip(self.by_position, earlier, strict=False)),
        )
        counts = (added.generated, added.drafts, added.drafted, added.accepted, *added.by_position)
        return added if min(counts) >= 0 else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per step of the target, its own one included: 1 + accepted / drafts, as vLLM logs it."""
        return 1 + self.accepted / self.drafts if self.drafts else None
