"""How a draft is run, and whether it fits the target's layers.

A draft model brings its own KV cache, which vLLM has to plan beside the target's. Assistants and heads read the
target's cache or hidden states, and have to fit them number by number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.checkpoint.model import Checkpoint, Layer, Speculator
from gemmaspec.checkpoint.stored import parts
from gemmaspec.finding import Finding
from gemmaspec.patching.bugs import error_text
from gemmaspec.releases.drafting import found_in_path
from gemmaspec.releases.facts import first_with, releases
from gemmaspec.releases.gemma4 import since
from gemmaspec.releases.transformers import ASSISTANTS_FROM

_UNIFIED: Final = "Gemma4UnifiedForConditionalGeneration"
"""The architecture of the 12B, which reads text, images and sound in one stack."""
_ONE_GROUP: Final = "serve.disable_hybrid_kv_cache_manager: true"


def method_findings(target: Checkpoint, draft: Checkpoint, *, fitting: str, asked: str) -> Iterator[Finding]:
    """The method that the draft is made for, and what vLLM makes of it."""
    if target.speculator:
        yield Finding(
            code="target-is-draft",
            severity="error",
            message=f"{target.ref} can only draft ({target.architecture})",
            impact="vLLM cannot serve it by itself.",
            fix="the target comes first, the draft after --draft",
        )
    if asked != fitting:
        yield Finding(
            code="method",
            severity="error",
            message=f"{draft.architecture} drafts with method {fitting}, not {asked}",
            impact="vLLM builds another model than the one that is stored.",
            fix=f"speculative.method: {fitting}",
        )
    yield from _since(target, draft, fitting)
    if fitting in ("draft_model", "mtp"):
        yield from _path(draft.ref)


def _path(ref: str) -> Iterator[Finding]:
    """A folder's name matters only to the process engine: a container sees it as /models/draft."""
    taken = found_in_path(ref)
    if taken is None:
        return
    folder = ref.startswith(("/", "~", ".", "state:"))
    yield Finding(
        code="path-decides",
        severity="warning" if folder else "error",
        message=f"{taken[0]!r} in {ref} makes vLLM {taken[2]} and later take method {taken[1]} instead",
        impact="In a container the folder is /models/draft, and its own name does not matter." if folder else "",
        fix="serve it from a folder with another name",
    )


def _since(target: Checkpoint, draft: Checkpoint, method: str) -> Iterator[Finding]:
    unified = "unified" in target.model_type or "unified" in draft.model_type
    first = first_with(_UNIFIED) if unified else since(method)
    if first and first != releases()[0]:
        yield Finding(
            code="releases",
            severity="note",
            message=f"method {method} for this target works from vLLM {first} on",
            impact=f"Gemma 4 assistants also need transformers {ASSISTANTS_FROM} or later." if method == "mtp" else "",
        )
    if method == "eagle3":
        yield Finding(
            code="eagle3-groups",
            severity="note",
            message="vLLM 0.19.0 needs a patch for an EAGLE-3 head beside a Gemma 4; later releases do not",
            impact="With the hybrid KV cache manager on, the head's one layer splits the cache into a group for each "
            "layer, and every step builds metadata for all of them.",
            fix=_ONE_GROUP,
            patches=("eagle3-gemma4-target",),
        )


def own_cache_findings(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    """A draft model: two models' layers in one plan of the KV cache, one of them perhaps multimodal."""
    yield from _windows(target, draft)
    yield from _sharing(target, draft)
    yield from _groups(draft)
    yield from _modality(target, draft)


def _windows(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    mine, other = _window_sizes(target), _window_sizes(draft)
    if len(mine | other) > 1:
        yield Finding(
            code="sliding-windows",
            severity="patch",
            message=f"sliding windows differ: {_listed(mine)} in the target, {_listed(other)} in the draft",
            impact="With the hybrid KV cache manager off vLLM 0.19.0-0.33.0 stops: "
            f"{error_text('kv-spec-uniform-valueerror')}",
            patches=("kv-spec-uniform-valueerror",),
        )


def _sharing(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    shared = {
        role: sum(layer.shares_with is not None for layer in checkpoint.text.layers)
        for role, checkpoint in (("target", target), ("draft", draft))
    }
    if any(shared.values()):
        message = ", ".join(f"{number} of the {role}'s layers" for role, number in shared.items() if number)
        yield Finding(
            code="kv-sharing",
            severity="patch",
            message=f"{message} read another layer's KV cache",
            impact="With the hybrid KV cache manager off vLLM 0.19.0-0.33.0 stops: "
            f"{error_text('kv-sharing-uniform-specs')}",
            patches=("kv-sharing-uniform-specs",),
        )


def _groups(draft: Checkpoint) -> Iterator[Finding]:
    if len({layer.kind for layer in draft.text.layers}) > 1:
        yield Finding(
            code="kv-groups",
            severity="patch",
            message="the draft has sliding and full attention",
            impact="With the hybrid KV cache manager on vLLM 0.19.0-0.30.0 stops: "
            f"{error_text('draft-several-kv-groups')}. From 0.31.0 on model runner v2 drafts over several groups.",
            fix=_ONE_GROUP,
        )


def _modality(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    more = [one for one in ("image", "video", "audio") if one in target.modalities]
    if more:
        yield Finding(
            code="multimodal-target",
            severity="patch",
            message=f"the target takes {', '.join(more)} beside text",
            impact=f"vLLM 0.19.0-0.20.2 refuses: {error_text('draft-text-only')}. From 0.21.0 on model runner v1 "
            f"fails at the first request: {error_text('draft-text-only', 1)}",
            fix="or serve.language_model_only: true",
            patches=("draft-text-only",),
        )
    towers = sum(part.nbytes for part in parts(draft.tensors) if part.name in ("vision", "audio"))
    if towers:
        yield Finding(
            code="draft-towers",
            severity="note",
            message=f"the draft brings {towers / 1e9:.2f} GB of towers for images and sound",
            impact="It drafts from text alone; they only take memory.",
        )


def own_head_findings(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    """Assistants and heads: widths, layers and caches have to be the target's."""
    speculator = draft.speculator
    if speculator is None:
        return
    width = speculator.target_hidden_size
    if width and width != target.text.hidden_size:
        yield Finding(
            code="hidden-size",
            severity="error",
            message=f"the draft was made for hidden states of {width}, the target has {target.text.hidden_size}",
            impact="The first draft dies: mat1 and mat2 shapes cannot be multiplied",
            fix="the draft that was made for this target's size",
        )
    beyond = [layer for layer in speculator.target_layers if layer > len(target.text.layers)]
    if beyond:
        yield Finding(
            code="target-layers",
            severity="error",
            message=f"the draft reads the target's layer {beyond[0]}; the target has {len(target.text.layers)}",
            impact="Hidden states that it was trained on do not come.",
        )
    yield _shares(draft, speculator)
    if speculator.method == "mtp":
        yield from _assistant(target, draft)
    yield from _verifier(target, speculator.verifier)


def _shares(draft: Checkpoint, speculator: Speculator) -> Finding:
    """What a head takes from its target while it runs, and what it therefore does not cost."""
    stored = {part.name for part in parts(draft.tensors) if part.nbytes}
    if speculator.method == "mtp":
        taken, own = ["the KV cache", "the input embeddings"], ["the output head"]
    else:
        places = (("embeddings", "the input embeddings"), ("lm_head", "the output head"))
        taken = [called for name, called in places if name not in stored]
        own = ["the KV cache", *(called for name, called in places if name in stored)]
    scored = speculator.scored_tokens
    few = f"; it scores {scored} of {draft.text.vocab_size} words for a token" if scored else ""
    message = f"the head takes {_and(taken or ['nothing but hidden states'])} from the target"
    return Finding(code="shares", severity="note", message=f"{message}, and has {_and(own)} of its own{few}")


def _and(words: list[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)


def _assistant(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    """Each layer of an assistant reads the cache of the target's last layer of its kind."""
    owners = {layer.kind: layer for layer in target.text.layers if layer.shares_with is None}
    for kind in sorted({layer.kind for layer in draft.text.layers}):
        own = next(layer for layer in draft.text.layers if layer.kind == kind)
        read = owners.get(kind)
        if read is None or _cache(own) != _cache(read):
            yield Finding(
                code="shared-cache",
                severity="error",
                message=f"its {kind} layers expect {_cache_words(own)}, and the target's have "
                f"{_cache_words(read) if read else 'none'}",
                impact="An assistant reads the target's KV cache as it lies there.",
                fix="the assistant that was made for this target's size",
            )
    if target.text.experts:
        yield Finding(
            code="mtp-embeddings",
            severity="patch",
            message="a mixture of experts runs on model runner v1 by default up to vLLM 0.28.0",
            impact="vLLM 0.25.0-0.26.0 then leaves the assistant its own embeddings and fails at the first draft: "
            f"{error_text('mtp-share-embeddings')}",
            patches=("mtp-share-embeddings",),
        )
    if any(tensor.name.endswith((".k_scale", ".v_scale")) for tensor in target.tensors):
        yield Finding(
            code="mtp-kv-scales",
            severity="warning",
            message="the target stores scales for an FP8 KV cache",
            impact="Before vLLM 0.31.0, and later under model runner v1, the assistant reads that cache without them: "
            "few of its tokens are accepted.",
            fix="leave serve.kv_cache_dtype at auto there",
        )


def _verifier(target: Checkpoint, verifier: str | None) -> Iterator[Finding]:
    if verifier and verifier not in (target.ref, *target.base_models):
        yield Finding(
            code="verifier",
            severity="note",
            message=f"the draft names {verifier} as the model it was made for, and the target is {target.ref}",
            impact="Other weights of the same shape work; how much is accepted depends on how like they are.",
        )


def _window_sizes(checkpoint: Checkpoint) -> set[int]:
    return {layer.window for layer in checkpoint.text.layers if layer.window is not None}


def _listed(windows: set[int]) -> str:
    return " and ".join(map(str, sorted(windows))) or "none"


def _cache(layer: Layer) -> tuple[int, int, int | None]:
    return layer.kv_heads, layer.head_dim, layer.window


def _cache_words(layer: Layer) -> str:
    window = f", window {layer.window}" if layer.window else ""
    return f"{layer.kv_heads} KV head{'s' if layer.kv_heads > 1 else ''} of {layer.head_dim}{window}"
