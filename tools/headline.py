"""README's first figures, from the store: the profile as it ships, without its draft, and vLLM as released."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gemmaspec.core.rows import Row
from gemmaspec.run.kept.measurements import store

MACHINE: Final = "h100"
RELEASE: Final = "0.32.0"
CONTEXTS: Final = (256, 8192)
K: Final = 4
ALONE: Final = {"gemma4-fused-norms", "humming-launch-params", "triton-launch-params"}
PATCHES: Final = ALONE | {"triton-3d-longer-block", "triton-group-geometry", "triton-verify-split-kv"}
"""Those that the profile takes without its draft, and with it."""


def headline() -> str:
    """Return the sentences. LookupError where the store lacks one of their cells."""
    short, long = ([round(cell(which, context)) for which in (shipped, alone, released)] for context in CONTEXTS)
    lines = (
        f"**Gemma 4 31B, {short[0] / short[1]:.1f} times as fast on an {MACHINE.upper()}.** Tokens per second of one "
        "request while it decodes,",
        f"after {CONTEXTS[0]:,} tokens, `nvidia-31b-mtp` as it ships: **{short[0]}** with gemmaspec's patches for vLLM "
        "and Triton's attention,",
        f"{short[1]} without its draft, {short[2]} with the same draft on vLLM {RELEASE} as released, whose own choice "
        "of attention gives up graphs for it.",
        f"After {CONTEXTS[1]:,} tokens: {long[0]}, {long[1]} and {long[2]}.",
        "A small draft model proposes tokens, and the large target verifies them.",
    )
    return "\n".join(lines)


def shipped(row: Row) -> bool:
    """Return whether it is of the profile as it ships."""
    return row.k == K and row.attention_backend == "TRITON_ATTN" and set(row.patches or ()) == PATCHES


def alone(row: Row) -> bool:
    """Return whether it is of the same without its draft."""
    return row.k == 0 and row.attention_backend == "TRITON_ATTN" and set(row.patches or ()) == ALONE


def released(row: Row) -> bool:
    """Return whether it is of vLLM's own choice, which is never Triton's alone where Hopper serves images."""
    return row.k == K and row.attention_backend != "TRITON_ATTN" and row.patches == () and row.graphs != "full"


def cell(which: Callable[[Row], bool], context: int, requests: int = 1) -> float:
    """Return the tokens per second of a cell; of one that was measured again, the slower counts."""
    rows = [row for run in store() for row in run.rows if _served(row, context, requests) and which(row)]
    if not rows:
        raise LookupError(f"the store lacks a cell of {requests} requests at {context} tokens")
    return min(row.tokens_per_second for row in rows)


def _served(row: Row, context: int, requests: int) -> bool:
    """Return whether a cell is of what the profile starts: images, a BF16 cache, compiled; greedy, decoding."""
    same = (row.machine, row.vllm, row.concurrency, row.context) == (MACHINE, RELEASE, requests, context)
    served = row.images and row.kv_cache_dtype == "bf16" and row.linear_kernel == "humming" and row.sampling == "greedy"
    return bool(same and served and row.compile == "default" and row.answer_tokens is None)
