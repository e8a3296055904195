"""What vLLM counts while it speculates: of a whole reading of /metrics, what one answer or `status` needs."""

from __future__ import annotations

from dataclasses import dataclass

from gemmaspec.live.sample import Sample


@dataclass(frozen=True, kw_only=True)
class SpecCounters:
    """Counts since the server's start, summed over its engines; all zero if it counts nothing."""

    drafts: int = 0
    """Number of drafts."""
    draft_tokens: int = 0
    """Proposed tokens."""
    accepted_tokens: int = 0
    """Proposed tokens that the target accepted."""

    def since(self, before: SpecCounters) -> SpecCounters:
        """Return the increase since `before`. It is never negative, because a restarted server counts from zero."""
        return SpecCounters(
            drafts=max(0, self.drafts - before.drafts),
            draft_tokens=max(0, self.draft_tokens - before.draft_tokens),
            accepted_tokens=max(0, self.accepted_tokens - before.accepted_tokens),
        )

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per step of the target, its own one included: 1 + accepted / drafts, as vLLM logs it."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None


def spec_counters(sample: Sample) -> SpecCounters:
    """Return the counters of speculation in a reading of /metrics."""
    return SpecCounters(
        drafts=int(sample.drafts),
        draft_tokens=int(sample.draft_tokens),
        accepted_tokens=int(sample.accepted_tokens),
    )
