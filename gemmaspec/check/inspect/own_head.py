"""Whether a head matches the target whose cache or hidden states it reads."""

from __future__ import annotations

from collections.abc import Iterator

from gemmaspec.check.inspect.meaning import finding
from gemmaspec.core.checkpoint.model import Checkpoint, Layer, Speculator
from gemmaspec.core.checkpoint.stored import parts
from gemmaspec.core.finding import Finding
from gemmaspec.core.patching.bugs import error_text


def own_head_findings(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    """Yield findings on assistants and heads, whose widths, layers and caches must match the target's."""
    speculator = draft.speculator
    if speculator is None:
        return
    width = speculator.target_hidden_size
    if width and width != target.text.hidden_size:
        yield finding(
            "hidden-size",
            f"the draft was made for hidden states of {width}, but the target has {target.text.hidden_size}",
        )
    beyond = [layer for layer in speculator.target_layers if layer > len(target.text.layers)]
    if beyond:
        yield finding(
            "target-layers", f"the draft reads the target's layer {beyond[0]}; the target has {len(target.text.layers)}"
        )
    yield _shares(draft, speculator)
    if speculator.method == "mtp":
        yield from _assistant(target, draft)
    yield from _verifier(target, speculator.verifier)


def _shares(draft: Checkpoint, speculator: Speculator) -> Finding:
    """Return what a head shares with its target, and what it has itself."""
    stored = {part.name for part in parts(draft.tensors) if part.nbytes}
    if speculator.method == "mtp":
        taken, kept = ["KV cache", "input embeddings"], ["output head"]
    else:
        places = (("embeddings", "input embeddings"), ("lm_head", "output head"))
        taken = [called for name, called in places if name not in stored]
        kept = ["KV cache", *(called for name, called in places if name in stored)]
    scored = speculator.scored_tokens
    if scored:
        few = f"; it scores {scored} of {draft.text.vocab_size} words per token"
    else:
        few = ""
    if taken:
        used = f"the target's {_and(taken)}"
    else:
        used = "only the target's hidden states"
    message = f"the head uses {used}, and its own {_and(kept)}{few}"
    return finding("shares", message)


def _and(words: list[str]) -> str:
    if len(words) > 1:
        return " and ".join((", ".join(words[:-1]), words[-1]))
    return "".join(words)


def _assistant(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    """Yield findings on an assistant's layers, each of which reads the cache of the target's last layer of its kind."""
    owners = {layer.kind: layer for layer in target.text.layers if layer.shares_with is None}
    for kind in sorted({layer.kind for layer in draft.text.layers}):
        layer = next(layer for layer in draft.text.layers if layer.kind == kind)
        read = owners.get(kind)
        if read is None or _cache(layer) != _cache(read):
            yield finding(
                "shared-cache",
                f"its {kind} layers expect {_cache_words(layer)}, and the target's have "
                f"{_cache_words(read) if read else 'none'}",
            )
    if target.text.experts:
        yield finding(
            "mtp-embeddings",
            "a mixture of experts runs on model runner v1 by default up to vLLM 0.28.0",
            error=error_text("mtp-share-embeddings"),
        )
    if any(tensor.name.endswith((".k_scale", ".v_scale")) for tensor in target.tensors):
        yield finding("mtp-kv-scales", "the target stores scales for an FP8 KV cache")


def _verifier(target: Checkpoint, verifier: str | None) -> Iterator[Finding]:
    if verifier and verifier not in (target.ref, *target.base_models):
        yield finding("verifier", f"the draft was made for {verifier}, but the target is {target.ref}")


def _cache(layer: Layer) -> tuple[int, int, int | None]:
    return layer.kv_heads, layer.head_dim, layer.window


def _cache_words(layer: Layer) -> str:
    window = f", window {layer.window}" if layer.window else ""
    return f"{layer.kv_heads} KV head{'s' if layer.kv_heads > 1 else ''} of {layer.head_dim}{window}"
