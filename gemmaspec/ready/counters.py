"""What vLLM counts while it speculates, read from its /metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "vllm:spec_decode_num_"
_FIELDS: Final = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
}
"""v1/spec_decode/metrics.py, 0.19.0 to 0.33.0; they exist only while a draft is configured."""


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


def spec_counters(metrics_text: str) -> SpecCounters:
    """Return the speculation counters of a /metrics page. Raises ValueError if they are invalid."""
    from prometheus_client.parser import text_string_to_metric_families  # slow to import

    wanted = "\n".join(line for line in metrics_text.splitlines() if line.startswith(PREFIX))
    totals = dict.fromkeys(_FIELDS.values(), 0.0)
    for family in text_string_to_metric_families(f"{wanted}\n"):
        for sample in family.samples:
            if field := _FIELDS.get(sample.name):
                totals[field] += sample.value
    if not all(math.isfinite(total) and total >= 0 for total in totals.values()):
        raise ValueError("a counter is negative or not a number")
    return SpecCounters(**{field: int(total) for field, total in totals.items()})
