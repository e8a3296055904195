"""Is the draft similar to the target, and does it pay off? Such pairs start and answer, but may be slow."""

from __future__ import annotations

from collections.abc import Iterator

from gemmaspec.checkpoint.parts import Checkpoint
from gemmaspec.checkpoint.stored import part_of
from gemmaspec.finding import Finding
from gemmaspec.inspect.kind import kind_of


def likeness_findings(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    """Yield findings on base and instruct models, context, and size."""
    yield from _kinds(target, draft)
    yield from _context(target, draft)
    yield from _size(target, draft)


def step_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of weights that one step of the decoder reads: its layers, and the experts that a token uses."""
    text = checkpoint.text
    share = text.experts_per_token / text.experts if text.experts else 1.0
    layers = [tensor for tensor in checkpoint.tensors if part_of(tensor.name) == "decoder layers"]
    return round(sum(tensor.nbytes * (share if ".experts." in tensor.name else 1.0) for tensor in layers))


def _kinds(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    """Return the kind of a head, which reads the target's hidden states; None unless its card names one."""
    mine, why_mine = kind_of(target)
    other, why_other = kind_of(draft)
    if mine is None or other is None or mine == other:
        return
    yield Finding(
        code="base-and-instruct",
        severity="warning",
        message=f"the target is {_article(mine)} model ({why_mine}), the draft {_article(other)} one ({why_other})",
        impact="A base model does not predict the answers of an instruct model, nor the other way round. "
        "Published for such a pair (a base 26B-A4B in FP8 with the assistant of the instruct "
        "model, DGX Spark): 25 tokens/s, against 41 without a draft.",
        fix=f"use the draft made from the {mine} model" + (", google/gemma-4-…-it" if mine == "instruct" else ""),
    )


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "instruct" else f"a {kind}"


def _context(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    mine, other = target.text.max_position_embeddings, draft.text.max_position_embeddings
    if other < mine and not draft.speculator:
        yield Finding(
            code="context",
            severity="note",
            message=f"the draft was made for {other} tokens of context, the target for {mine}",
            impact=f"Requests longer than {other} tokens are answered without drafting.",
        )


def _size(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    mine, other = step_bytes(target), step_bytes(draft)
    if not mine or not other:
        return
    if other >= mine:
        yield Finding(
            code="draft-larger",
            severity="warning",
            message=f"one step of the draft reads {other / 1e9:.2f} GB of weights, one of the target {mine / 1e9:.2f} "
            "GB",
            impact="Each draft token costs more than a token of the target, so speculation only slows it down.",
            fix="use a smaller draft, or none (--no-spec)",
        )
    else:
        yield Finding(
            code="cost",
            severity="note",
            message=f"one step of the draft reads {other / 1e9:.2f} GB of decoder weights, one of the target "
            f"{mine / 1e9:.2f} GB: {other / mine:.0%}",
        )
