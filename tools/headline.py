"""README's first figures, from the store: the profile with and without its draft, and vLLM without its patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gemmaspec.core.releases.facts import newest
from gemmaspec.core.rows import Row, Run
from gemmaspec.run.kept.measurements import store

MACHINE: Final = "h100"
RELEASE: Final = "0.32.0"
"""What the profile runs."""
NEWEST: Final = newest()
CONTEXTS: Final = (256, 8192)
K: Final = 4
ALONE: Final = {"gemma4-fused-norms", "humming-launch-params", "triton-launch-params"}
PATCHES: Final = ALONE | {"triton-3d-longer-block", "triton-group-geometry", "triton-verify-split-kv"}
"""Those that the profile takes without its draft, and with it."""


def headline(runs: Sequence[Run] | None = None) -> str:
    """Return the sentences, by the store's runs if no others are given. LookupError where they lack a cell."""
    runs = store() if runs is None else runs
    short, long = CONTEXTS
    drafts, alone_ = (_of_each_context(runs, which, RELEASE) for which in (shipped, alone))
    plain = _of_each_context(runs, unpatched, NEWEST)
    lines = (
        f"**Gemma 4 31B, {drafts[0] / alone_[0]:.1f} times as fast on an {MACHINE.upper()}**: `nvidia-31b-mtp` as it "
        f"ships decodes one request with **{drafts[0]}** tokens per second,",
        f"and with **{alone_[0]}** without its draft (after {short:,} tokens; after {long:,}: {drafts[1]} and "
        f"{alone_[1]}). A small draft model proposes tokens, and the large target verifies them.",
        "",
        f"What that comes from: vLLM {NEWEST}, the newest, makes {plain[0]} and {plain[1]} with the profile's settings "
        "and no patch of gemmaspec.",
        _own_choice(runs),
    )
    return "\n".join(lines)


def _own_choice(runs: Sequence[Run]) -> str:
    """Return the sentence about vLLM's own choice of attention, of the newest release that was measured so."""
    try:
        figures, release = _of_each_context(runs, released, NEWEST), NEWEST
        rest = ""
    except LookupError:
        figures, release = _of_each_context(runs, released, RELEASE), RELEASE
        rest = f" {NEWEST} was not measured so."
    return (
        f"Where the profile does not choose its attention, vLLM {release} gives up CUDA graphs for it and makes "
        f"{figures[0]} and {figures[1]}.{rest}"
    )


def _of_each_context(runs: Sequence[Run], which: Callable[[Row], bool], vllm: str) -> list[int]:
    """Return the whole tokens per second of one request at each context."""
    return [round(_slowest(runs, which, context, requests=1, vllm=vllm)) for context in CONTEXTS]


def shipped(row: Row) -> bool:
    """Return whether it is of the profile as it ships."""
    return row.k == K and row.attention_backend == "TRITON_ATTN" and set(row.patches or ()) == PATCHES


def alone(row: Row) -> bool:
    """Return whether it is of the same without its draft."""
    return row.k == 0 and row.attention_backend == "TRITON_ATTN" and set(row.patches or ()) == ALONE


def unpatched(row: Row) -> bool:
    """Return whether it is of the profile's own settings, and none of its patches."""
    return row.k == K and row.attention_backend == "TRITON_ATTN" and row.patches == ()


def released(row: Row) -> bool:
    """Return whether it is of vLLM's own choice, which is never Triton's alone where Hopper serves images."""
    return row.k == K and row.attention_backend != "TRITON_ATTN" and row.patches == () and row.graphs != "full"


def cell(which: Callable[[Row], bool], context: int, requests: int = 1, *, vllm: str = RELEASE) -> float:
    """Return the tokens per second of a cell of the store; of one that was measured again, the slower counts."""
    return _slowest(store(), which, context, requests, vllm)


def _slowest(runs: Sequence[Run], which: Callable[[Row], bool], context: int, requests: int, vllm: str) -> float:
    rows = [row for run in runs for row in run.rows if _served(row, context, requests, vllm) and which(row)]
    if not rows:
        raise LookupError(f"the store lacks a cell of {requests} requests at {context} tokens with vLLM {vllm}")
    return min(row.tokens_per_second for row in rows)


def _served(row: Row, context: int, requests: int, vllm: str) -> bool:
    """Return whether a cell is of what the profile starts: images, a BF16 cache, compiled; greedy, decoding."""
    same = (row.machine, row.vllm, row.concurrency, row.context) == (MACHINE, vllm, requests, context)
    served = row.images and row.kv_cache_dtype == "bf16" and row.linear_kernel == "humming" and row.sampling == "greedy"
    return bool(same and served and row.compile == "default" and row.answer_tokens is None)
