"""README's first figures, from the store: vLLM as released, without a draft, and with gemmaspec's patches."""

from __future__ import annotations

from itertools import product
from typing import Final

from gemmaspec.deploy.kept.measurements import store
from gemmaspec.rows import Row

RELEASE: Final = "0.32.0"
CONTEXTS: Final = (8192, 256)
K: Final = 4
Three = tuple[Row, Row, Row]
"""As released with the draft, without it, and with patches."""


def headline() -> str:
    """Return the sentences. The cells are those nearest to the profile as shipped that the store has all three of."""
    long, short = (three(context) for context in CONTEXTS)
    gain = _rate(long[2]) / _rate(long[1])
    by_hand = " and Triton's attention, which the profile names" if long[2].attention_backend == "TRITON_ATTN" else ""
    by_hand += "" if long[2].images else " (it was not recorded whether images were served)"
    cache = "" if long[0].kv_cache_dtype == "bf16" else " with an FP8 cache"
    lines = (
        f"**Gemma 4 31B, {gain:.1f} times as fast on an H200.** Tokens per second of one request while it decodes,",
        f"after {CONTEXTS[0]:,} ({CONTEXTS[1]}) tokens, `nvidia-31b-mtp`{cache}: **{_both(long, short, 2)}**",
        f"with gemmaspec's patches for vLLM{by_hand}, {_both(long, short, 1)} without a draft,",
        f"{_both(long, short, 0)} with the same draft on vLLM {RELEASE} as released, whose own choice of attention "
        "gives up graphs for it.",
        "A small draft model proposes tokens, and the large target verifies them.",
    )
    return "\n".join(lines)


def _both(long: Three, short: Three, place: int) -> str:
    return f"{_rate(long[place])} ({_rate(short[place])})"


def three(context: int) -> Three:
    """Return the three cells of one request at a context; LookupError where the store lacks one."""
    rows = [row for run in store() for row in run.rows if _counts(row, context)]
    released = [row for row in rows if row.k == K and row.images and not row.patches and _own_choice(row)]
    alone = [row for row in rows if row.k == 0 and row.images and not row.patches and _own_choice(row)]
    ours = [row for row in rows if row.k == K and row.patches and row.graphs == "full"]
    found = [trio for trio in product(released, alone, ours) if len({row.kv_cache_dtype for row in trio}) == 1]
    if not found:
        raise LookupError(f"the store lacks a cell at {context} tokens")
    return max(found, key=_nearest)


def _own_choice(row: Row) -> bool:
    """Return whether vLLM chose the attention; where images are served on an H200 it never chooses Triton's alone."""
    return row.attention_backend != "TRITON_ATTN"


def _nearest(trio: Three) -> tuple[bool, bool, float]:
    """Rank by how near to the profile as shipped it is; of a cell that was measured again, the slower counts."""
    return trio[0].kv_cache_dtype == "bf16", bool(trio[2].images), -trio[2].tokens_per_second


def _counts(row: Row, context: int) -> bool:
    """Return whether a cell is of one request to the shipped profile's release and method, decoding, compiled."""
    same = (row.machine, row.vllm, row.concurrency, row.context) == ("h200", RELEASE, 1, context)
    shipped = row.compile == "default" and row.method in ("none", "mtp") and row.linear_kernel in (None, "humming")
    return same and shipped and row.answer_tokens is None


def _rate(row: Row) -> int:
    return round(row.tokens_per_second)
