"""What a patch for speed buys, from its measured cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gemmaspec.core.patching.evidence import Pair
    from gemmaspec.core.patching.patch import Patch


_MOST: Final = 12
"""The most cells that are shown to a person."""


def paragraphs(patch: Patch) -> Iterator[tuple[str, list[str]]]:
    """Yield the paragraphs of `patch explain` that only a patch for speed has."""
    from gemmaspec.core.patching.evidence import pairs_of

    claims = []
    for claim in patch.text.pays:
        methods = ", ".join("no draft" if method == "none" else method for method in claim.methods)
        claims.append(f"vllm {claim.versions} on {', '.join(claim.gpus)}, {', '.join(claim.backends)}: {methods}")
    yield "Where patches.speed: auto takes it", claims or ["nowhere yet: it claims no setting in which it pays"]
    pairs = sorted(pairs_of(patch.id, patch.evidence), key=lambda pair: -pair.gain)
    if pairs:
        if len(pairs) > _MOST:
            more = [f"and {len(pairs) - _MOST} more cells: patch explain --json"]
        else:
            more = []
        yield "What it buys, measured", [*map(_line, pairs[:_MOST]), *more]
        slowest = pairs[-1]
        if slowest.gain < 1:
            yield "Where it costs most", [_line(slowest)]
    sources = dict.fromkeys(f"{run.gpu}, {run.date}: {run.source}" for run in patch.evidence)
    if sources:
        yield "Where the cells come from", list(sources)
    if patch.text.dropped_in:
        yield "The release of vLLM that has it", [patch.text.dropped_in]


def _line(pair: Pair) -> str:
    row = pair.having
    if row.method == "none":
        method = "no speculation"
    else:
        method = f"{row.method} k={row.k}"
    cell = f"{method}, {row.context:,} tokens of prompt, {row.concurrency} concurrent, vllm {row.vllm}"
    gains = [f"{pair.without.step_ms:.1f} -> {row.step_ms:.1f} ms a step, {pair.step_gain:.2f} times"]
    if pair.first_token_gain and pair.without.ttft_ms and row.ttft_ms:
        gains.append(
            f"first token {pair.without.ttft_ms:,.0f} -> {row.ttft_ms:,.0f} ms, {pair.first_token_gain:.2f} times"
        )
    beside = sorted({*row.patches} & {*pair.without.patches})
    return f"{cell}{f', with {chr(44).join(beside)}' if beside else ''}: {'; '.join(gains)}"


def document(patch: Patch) -> dict[str, Any]:
    """Return the same for machines; nothing for a patch of a defect."""
    from gemmaspec.core.patching.evidence import pairs_of

    if not patch.is_speed:
        return {}
    pairs = [
        {
            "machine": pair.run.machine,
            "date": pair.run.date,
            "with": pair.having,
            "without": pair.without,
            "step_gain": pair.step_gain,
            "first_token_gain": pair.first_token_gain,
        }
        for pair in pairs_of(patch.id, patch.evidence)
    ]
    return {"pays": patch.text.pays, "dropped_in": patch.text.dropped_in, "evidence": pairs}
