"""One checkpoint alone: what to know before vLLM loads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

from gemmaspec.checkpoint.parts import Checkpoint
from gemmaspec.checkpoint.stored import parts
from gemmaspec.finding import Finding
from gemmaspec.inspect.loadable import load_findings
from gemmaspec.inspect.quantized import quantization_findings


def examine(checkpoint: Checkpoint, *, drafts: bool = False, text_only: bool = False) -> tuple[Finding, ...]:
    """Return every finding about one checkpoint, in reading order. `drafts`: it is a draft.

    `text_only`: it is served without its towers (serve.language_model_only).
    """
    can_load = load_findings(checkpoint, drafts=drafts)
    return (*can_load, *quantization_findings(checkpoint), *_shape(checkpoint, builds=not (drafts or text_only)))


def _shape(checkpoint: Checkpoint, *, builds: bool) -> Iterator[Finding]:
    """Yield findings from comparing config.json with the stored parts, and on forms that some releases misread."""
    named = {part.name for part in parts(checkpoint.tensors)}
    for modality, part in (("image", "vision"), ("audio", "audio")):
        if modality in checkpoint.modalities and named and part not in named:
            yield Finding(
                code=f"{part}-tower-missing",
                severity="error" if builds else "note",
                message=f"config.json declares {modality}s, but no {part} tensors are stored",
                impact="vLLM stops because of missing weights: weights were not initialized from checkpoint",
                fix="serve.language_model_only: true",
            )
    text = checkpoint.config.get("text_config")
    if isinstance(text, dict) and text.get("per_layer_config") and "global_head_dim" not in text:
        yield Finding(
            code="per-layer-config",
            severity="warning",
            message="config.json has head sizes per layer, as transformers 5.16 and later write them",
            impact="transformers up to 5.15, which vLLM up to 0.31 may run with, uses its defaults for "
            "full-attention layers instead.",
        )


Kind = Literal["instruct", "base"]
_PUBLISHED: Final = re.compile(r"google/gemma-4-[\w.]+?(-it)?(-assistant)?", re.IGNORECASE)
_IT: Final = re.compile(r"(?:^|[-_/])it(?:[-_.]|$)|instruct|-chat", re.IGNORECASE)


def kind_of(checkpoint: Checkpoint) -> tuple[Kind | None, str]:
    """Return the kind and the evidence; the model card takes precedence over the name, and the name over the files."""
    for base in checkpoint.base_models:
        match = _PUBLISHED.fullmatch(base)
        if match:
            return ("instruct" if match[1] else "base"), f"its card names {base}"
    if _IT.search(checkpoint.ref.rstrip("/").rpartition("/")[2]):
        return "instruct", "its name says so"
    if checkpoint.has_chat_template is None:
        return None, "unknown"
    if checkpoint.has_chat_template:
        return "instruct", "it has a chat template"
    return "base", "it has no chat template"
