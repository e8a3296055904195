"""What works for Gemma 4 in which vLLM release.

No code states this: it is written by hand, each row with its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from gemmaspec import launcher

HybridManager = Literal["on", "off", "any"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to speculate that works for a Gemma 4 target in some releases, and its requirements."""

    method: str
    versions: str
    hybrid_manager: HybridManager = "any"
    """The required setting of the hybrid KV cache manager."""
    patches: tuple[str, ...] = ()
    """Shipped patches without which vLLM does not start, or dies."""
    patches_when: tuple[tuple[str, str], ...] = ()
    """Further patches, each with the condition under which it is needed."""
    note: str = ""


_WINDOWS: Final = ("kv-spec-uniform-valueerror",)
_ONE_GROUP: Final = (*_WINDOWS, "kv-sharing-uniform-specs")
_SEES: Final = "the target accepts images or audio, and model runner v1 runs"

METHODS: Final = (
    Method(method="ngram", versions=">=0.19.0"),
    Method(method="ngram_gpu", versions=">=0.19.0"),
    Method(method="suffix", versions=">=0.19.0", note="needs the package arctic-inference"),
    Method(
        method="draft_model",
        versions=">=0.19.0",
        hybrid_manager="off",
        patches=_ONE_GROUP,
        patches_when=(("draft-text-only", _SEES),),
    ),
    Method(
        method="draft_model",
        versions=">=0.19.0,<0.20",
        hybrid_manager="on",
        patches=("draft-several-kv-groups",),
        patches_when=(("draft-text-only", _SEES),),
    ),
    Method(
        method="draft_model",
        versions=">=0.31.0",
        hybrid_manager="on",
        note="only in model runner v2, which needs Triton; read in its code, not run",
    ),
    Method(method="eagle3", versions=">=0.19.0,<0.19.1", patches=("eagle3-gemma4-target",)),
    Method(method="eagle3", versions=">=0.19.1"),
    Method(
        method="mtp",
        versions=">=0.21.0",
        patches_when=(("mtp-share-embeddings", "vLLM 0.25.0 to 0.26.0, and model runner v1 runs"),),
        note="with google/gemma-4-*-it-assistant, and transformers 5.8.0 or newer",
    ),
    Method(method="dflash", versions=">=0.21.0", note="up to 0.24 no layer has a sliding window"),
    Method(method="dflash", versions=">=0.25.0", hybrid_manager="off", patches=_WINDOWS),
    Method(method="dspark", versions=">=0.26.0", note="only in model runner v2"),
    Method(method="dspark", versions=">=0.26.0", hybrid_manager="off", patches=_WINDOWS),
    Method(method="custom_class", versions=">=0.22.0"),
    Method(method="extract_hidden_states", versions=">=0.19.1"),
)
"""Sources, all in the released wheels. draft_model: is_kv_cache_spec_uniform() and
add_kv_sharing_layers_to_kv_cache_groups() in every release (docs/explanations/proof.md shows both bugs in real code),
the assertion in SpecDecodeBaseProposer.validate_same_kv_cache_group (every release), and
vllm/v1/worker/gpu/spec_decode/ from 0.31.0. eagle3: the list
aux_hidden_states_supported in vllm/config/speculative.py of 0.19.0 and 0.19.1. mtp:
vllm/model_executor/models/gemma4_mtp.py from 0.21.0, _maybe_share_embeddings of 0.25.0-0.26.0. dflash: windows of
its layers in vllm/model_executor/models/qwen3_dflash.py from 0.25.0, which DSpark heads take over. dspark:
gemma4_dspark.py from 0.26.0. The rest: the literal SpeculativeMethod and the proposers of v1/spec_decode."""


def since(method: str) -> str | None:
    """Return the first release in which a method drafts for a Gemma 4 target; None for a method that never does."""
    firsts = (row.versions.removeprefix(">=").partition(",")[0] for row in METHODS if row.method == method)
    return next(firsts, None)


def methods_for(vllm: str) -> tuple[Method, ...]:
    """Return what works under one vLLM."""
    return tuple(row for row in METHODS if within(vllm, row.versions))


def within(vllm: str, versions: str) -> bool:
    """Return whether a version is in a range, by its release number; one without a number counts as very new."""
    return launcher.range_contains(versions, vllm if vllm[:1].isdigit() else "999")
