"""Whether a draft model's own KV cache fits the target's: vLLM plans both together."""

from __future__ import annotations

from collections.abc import Iterator

from gemmaspec.check.inspect.meaning import finding
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.stored import parts
from gemmaspec.core.finding import Finding
from gemmaspec.core.patching.bugs import error_text
from gemmaspec.core.sentences import readable_size


def own_cache_findings(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    """Yield findings on a draft model, whose layers share one plan of the KV cache with the target's."""
    yield from _windows(target, draft)
    yield from _sharing(target, draft)
    yield from _groups(draft)
    yield from _modality(target, draft)


def _windows(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    mine, other = _window_sizes(target), _window_sizes(draft)
    if len(mine | other) > 1:
        yield finding(
            "sliding-windows",
            f"sliding windows differ: {_listed(mine)} in the target, {_listed(other)} in the draft",
            error=error_text("kv-spec-uniform-valueerror"),
        )


def _sharing(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    shared = []
    for role, checkpoint in (("target", target), ("draft", draft)):
        number = sum(layer.shares_with is not None for layer in checkpoint.text.layers)
        if number:
            shared.append(f"{number} of the {role}'s layers")
    if shared:
        message = ", ".join(shared)
        yield finding(
            "kv-sharing", f"{message} read another layer's KV cache", error=error_text("kv-sharing-uniform-specs")
        )


def _groups(draft: Checkpoint) -> Iterator[Finding]:
    kinds = {layer.kind for layer in draft.text.layers}
    if len(kinds) > 1:
        yield finding(
            "kv-groups", "the draft has sliding and full attention", error=error_text("draft-several-kv-groups")
        )


def _modality(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    more = [kind for kind in ("image", "video", "audio") if kind in target.modalities]
    if more:
        yield finding(
            "multimodal-target",
            f"the target also takes {' and '.join(more)}",
            early=error_text("draft-text-only"),
            late=error_text("draft-text-only", 1),
        )
    towers = sum(part.nbytes for part in parts(draft.tensors) if part.name in ("vision", "audio"))
    if towers:
        yield finding("draft-towers", f"the draft has {readable_size(towers)} of image and audio encoders")


def _window_sizes(checkpoint: Checkpoint) -> set[int]:
    return {layer.window for layer in checkpoint.text.layers if layer.window is not None}


def _listed(windows: set[int]) -> str:
    return " and ".join(map(str, sorted(windows))) or "none"
