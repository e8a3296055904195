"""One checkpoint alone: whether vLLM can load its files, format, tokenizer and layers, and what to know before.

Effects are those of vLLM's loader (vllm/model_executor/model_loader/weight_utils.py and default_loader.py, 0.19.0 to
0.33.0)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from gemmaspec.check.inspect.decoder import how_many, of_layers, some
from gemmaspec.check.inspect.meaning import finding
from gemmaspec.check.inspect.needed import missing_modules
from gemmaspec.check.inspect.quantized import quantization_findings
from gemmaspec.check.inspect.shapes import differing_shapes
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.stored import parts
from gemmaspec.core.finding import Finding


def load_findings(checkpoint: Checkpoint, *, drafts: bool = False) -> Iterator[Finding]:
    """Yield every reason why vLLM would not load it. `drafts`: it is a draft, which needs no tokenizer."""
    yield from _files(checkpoint)
    yield from _form(checkpoint)
    if not drafts and not checkpoint.speculator:
        yield from _tokenizer(checkpoint)
    if checkpoint.tensors and not checkpoint.missing_files and not is_mlx(checkpoint):
        yield from _layers(checkpoint)
        yield from missing_modules(checkpoint)
        yield from differing_shapes(checkpoint)


def is_mlx(checkpoint: Checkpoint) -> bool:
    """Return whether it is stored in MLX's format: `quantization` in config.json, and biases with scales."""
    quantization = checkpoint.config.get("quantization")
    declared = isinstance(quantization, Mapping) and "bits" in quantization and "config_groups" not in quantization
    names = {tensor.name for tensor in checkpoint.tensors}
    scales = [name for name in names if name.endswith(".scales")]
    return declared and any(f"{name.removesuffix('.scales')}.weight" in names for name in scales)


def _files(checkpoint: Checkpoint) -> Iterator[Finding]:
    if checkpoint.missing_files:
        yield finding(
            "weights-missing",
            f"{how_many(len(checkpoint.missing_files), 'weight file')} missing: {some(checkpoint.missing_files)}",
            ref=checkpoint.ref,
        )
    elif checkpoint.other_weights and not checkpoint.tensors:
        yield from _other_weights(checkpoint)
    elif not checkpoint.tensors:
        yield finding("no-weights", "no safetensors files")
    if checkpoint.unindexed_files:
        yield finding(
            "not-in-index",
            f"{how_many(len(checkpoint.unindexed_files), 'weight file')} in the folder but not in the index: "
            f"{some(checkpoint.unindexed_files)}",
        )


def _other_weights(checkpoint: Checkpoint) -> Iterator[Finding]:
    if all(name.endswith(".gguf") for name in checkpoint.other_weights):
        yield finding("gguf", f"its weights are GGUF: {some(checkpoint.other_weights)}")
        return
    yield finding("pickled-weights", f"its weights are pickled: {some(checkpoint.other_weights)}")


def _form(checkpoint: Checkpoint) -> Iterator[Finding]:
    if twice := [tensor.name for tensor in checkpoint.tensors if tensor.name.startswith("model.model.")]:
        yield finding("unknown-names", f"{how_many(len(twice), 'tensor')} named model.model.…: {twice[0]}")
    if is_mlx(checkpoint):
        yield finding(
            "mlx", "it is stored for MLX: config.json has `quantization`, and its weights are packed with biases"
        )


def _tokenizer(checkpoint: Checkpoint) -> Iterator[Finding]:
    if checkpoint.tokenizer_damaged:
        yield finding("tokenizer-damaged", "tokenizer.json is damaged: it is not a JSON object", ref=checkpoint.ref)
    if checkpoint.has_tokenizer is False:
        yield finding("tokenizer-missing", "tokenizer.json and tokenizer.model are missing")


def _layers(checkpoint: Checkpoint) -> Iterator[Finding]:
    if checkpoint.speculator and checkpoint.speculator.method != "mtp":
        return  # other heads name their layers in their own ways
    stored = {index for index, _, _ in of_layers(checkpoint)}
    lacking = [index for index in range(len(checkpoint.text.layers)) if index not in stored]
    if lacking:
        shown = ", ".join(map(str, lacking[:5])) + (" …" if len(lacking) > 5 else "")
        yield finding(
            "layers-missing",
            f"of {len(checkpoint.text.layers)} layers, {how_many(len(lacking), 'layer')} not stored: {shown}",
            ref=checkpoint.ref,
        )
    beyond = sorted(index for index in stored if index >= len(checkpoint.text.layers))
    if beyond:
        yield finding(
            "layers-beyond", f"layer {beyond[0]} is stored, but config.json has {len(checkpoint.text.layers)}"
        )


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
            yield finding(
                f"{part}-tower-missing",
                f"config.json declares {modality}s, but no {part} tensors are stored",
                severity="error" if builds else "note",
            )
    text = checkpoint.config.get("text_config")
    if isinstance(text, dict) and text.get("per_layer_config") and "global_head_dim" not in text:
        yield finding(
            "per-layer-config", "config.json has head sizes per layer, as transformers 5.16 and later write them"
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
