"""How a draft is run, and whether it fits the target's layers.

A draft model brings its own KV cache, which vLLM has to plan beside the target's. Assistants and heads read the
target's cache or hidden states, and have to fit them number by number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.checkpoint.model import Checkpoint, Layer
from gemmaspec.checkpoint.stored import parts
from gemmaspec.inspect.finding import Finding

_BY_PATH: Final = (
    ("eagle-", "eagle", "0.19.0"),
    ("eagle3", "eagle3", "0.19.0"),
    ("dflash", "dflash", "0.20.0"),
    ("dspark", "dspark", "0.25.0"),
)
"""Part of a draft's path, the method that vLLM then takes, whatever was asked for, and since when
(config/speculative.py)."""
_SINCE: Final = {"mtp": "0.21.0", "dflash": "0.21.0", "dspark": "0.26.0", "draft_model": "0.19.0", "eagle3": "0.19.0"}
"""First release in which the method drafts for a Gemma 4 target."""
_ONE_GROUP: Final = "serve.disable_hybrid_kv_cache_manager: true"


def method_findings(target: Checkpoint, draft: Checkpoint, *, fitting: str, asked: str) -> Iterator[Finding]:
    """The method that the draft is made for, and what vLLM makes of it."""
    if target.speculator:
        yield Finding(
            code="target-is-draft",
            severity="error",
            says=f"{target.ref} can only draft ({target.architecture})",
            causes="vLLM cannot serve it by itself.",
            mend="the target comes first, the draft after --draft",
        )
    if asked != fitting:
        yield Finding(
            code="method",
            severity="error",
            says=f"{draft.architecture} drafts with method {fitting}, not {asked}",
            causes="vLLM builds another model than the one that is stored.",
            mend=f"speculative.method: {fitting}",
        )
    yield from _since(target, draft, fitting)
    if fitting in ("draft_model", "mtp"):
        yield from _path(draft.ref)


def _path(ref: str) -> Iterator[Finding]:
    """A folder's name matters only to the process engine: a container sees it as /models/draft."""
    taken = next((one for one in _BY_PATH if one[0] in ref.lower()), None)
    if taken is None:
        return
    folder = ref.startswith(("/", "~", ".", "state:"))
    yield Finding(
        code="path-decides",
        severity="warning" if folder else "error",
        says=f"{taken[0]!r} in {ref} makes vLLM {taken[2]} and later take method {taken[1]} instead",
        causes="In a container the folder is /models/draft, and its own name does not matter." if folder else "",
        mend="serve it from a folder with another name",
    )


def _since(target: Checkpoint, draft: Checkpoint, method: str) -> Iterator[Finding]:
    unified = "unified" in target.model_type or "unified" in draft.model_type
    since = "0.23.0" if unified else _SINCE.get(method)
    if since and since != "0.19.0":
        yield Finding(
            code="releases",
            severity="note",
            says=f"method {method} for this target works from vLLM {since} on",
            causes="Gemma 4 assistants also need transformers 5.8 or later." if method == "mtp" else "",
        )
    if method == "eagle3":
        yield Finding(
            code="eagle3-groups",
            severity="note",
            says="vLLM 0.19.0 needs a patch for an EAGLE-3 head beside a Gemma 4; later releases do not",
            causes="With the hybrid KV cache manager on, the head's one layer splits the cache into a group for each "
            "layer, and every step builds metadata for all of them.",
            mend=_ONE_GROUP,
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
            says=f"sliding windows differ: {_listed(mine)} in the target, {_listed(other)} in the draft",
            causes="With the hybrid KV cache manager off vLLM 0.19.0-0.33.0 stops: All attention layers in the same "
            "KV cache group must have the same window size.",
            patches=("kv-spec-uniform-valueerror",),
        )


def _sharing(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    shared = {
        role: sum(layer.shares_with is not None for layer in checkpoint.text.layers)
        for role, checkpoint in (("target", target), ("draft", draft))
    }
    if any(shared.values()):
        says = ", ".join(f"{number} of the {role}'s layers" for role, number in shared.items() if number)
        yield Finding(
            code="kv-sharing",
            severity="patch",
            says=f"{says} read another layer's KV cache",
            causes="With the hybrid KV cache manager off vLLM 0.19.0-0.33.0 stops: KeyError: '….self_attn.attn'",
            patches=("kv-sharing-uniform-specs",),
        )


def _groups(draft: Checkpoint) -> Iterator[Finding]:
    if len({layer.kind for layer in draft.text.layers}) > 1:
        yield Finding(
            code="kv-groups",
            severity="patch",
            says="the draft has sliding and full attention",
            causes="With the hybrid KV cache manager on vLLM 0.19.0-0.30.0 stops: All drafting layers should belong "
            "to the same kv cache group. From 0.31.0 on model runner v2 drafts over several groups.",
            mend=_ONE_GROUP,
        )


def _modality(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    more = [one for one in ("image", "video", "audio") if one in target.modalities]
    if more:
        yield Finding(
            code="multimodal-target",
            severity="patch",
            says=f"the target takes {', '.join(more)} beside text",
            causes="vLLM 0.19.0-0.20.2 refuses: Speculative Decoding with draft models or parallel drafting does not "
            "support multimodal models yet. From 0.21.0 on model runner v1 dies at the first request: The size of "
            "tensor a (…) must match the size of tensor b (…)",
            mend="or serve.language_model_only: true",
            patches=("draft-text-only",),
        )
    towers = sum(part.nbytes for part in parts(draft.tensors) if part.name in ("vision", "audio"))
    if towers:
        yield Finding(
            code="draft-towers",
            severity="note",
            says=f"the draft brings {towers / 1e9:.2f} GB of towers for images and sound",
            causes="It drafts from text alone; they only take memory.",
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
            says=f"the draft was made for hidden states of {width}, the target has {target.text.hidden_size}",
            causes="The first draft dies: mat1 and mat2 shapes cannot be multiplied",
            mend="the draft that was made for this target's size",
        )
    beyond = [layer for layer in speculator.target_layers if layer > len(target.text.layers)]
    if beyond:
        yield Finding(
            code="target-layers",
            severity="error",
            says=f"the draft reads the target's layer {beyond[0]}; the target has {len(target.text.layers)}",
            causes="Hidden states that it was trained on do not come.",
        )
    if speculator.method == "mtp":
        yield from _assistant(target, draft)
    yield from _verifier(target, speculator.verifier)


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
                says=f"its {kind} layers expect {_cache_words(own)}, and the target's have "
                f"{_cache_words(read) if read else 'none'}",
                causes="An assistant reads the target's KV cache as it lies there.",
                mend="the assistant that was made for this target's size",
            )
    if target.text.experts:
        yield Finding(
            code="mtp-embeddings",
            severity="patch",
            says="a mixture of experts runs on model runner v1 by default up to vLLM 0.28.0",
            causes="vLLM 0.25.0-0.26.0 then leaves the assistant its own embeddings and dies at the first draft: mat1 "
            "and mat2 shapes cannot be multiplied",
            patches=("mtp-share-embeddings",),
        )
    if any(tensor.name.endswith((".k_scale", ".v_scale")) for tensor in target.tensors):
        yield Finding(
            code="mtp-kv-scales",
            severity="warning",
            says="the target stores scales for an FP8 KV cache",
            causes="Before vLLM 0.31.0, and later under model runner v1, the assistant reads that cache without them: "
            "few of its tokens are accepted.",
            mend="leave serve.kv_cache_dtype at auto there",
        )


def _verifier(target: Checkpoint, verifier: str | None) -> Iterator[Finding]:
    if verifier and verifier not in (target.ref, *target.base_models):
        yield Finding(
            code="verifier",
            severity="note",
            says=f"the draft names {verifier} as the model it was made for, and the target is {target.ref}",
            causes="Other weights of the same shape work; how much is accepted depends on how like they are.",
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
