"""One checkpoint alone: whether vLLM can load its files, format, tokenizer and layers, and what to know before.

Effects are those of vLLM's loader (vllm/model_executor/model_loader/weight_utils.py and default_loader.py, 0.19.0 to
0.33.0)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from gemmaspec.check.inspect.meaning import finding
from gemmaspec.check.inspect.quantized import quantization_findings
from gemmaspec.core.checkpoint.parts import Checkpoint, Tensor
from gemmaspec.core.checkpoint.stored import part_of, parts
from gemmaspec.core.finding import Finding

_LAYER: Final = re.compile(r"\blayers\.([0-9]{1,4})\.(.+)$")
_FULL: Final = ("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2")
"""Types that store one number per element, so that a tensor's shape is its matrix's."""


def load_findings(checkpoint: Checkpoint, *, drafts: bool = False) -> Iterator[Finding]:
    """Yield every reason why vLLM would not load it. `drafts`: it is a draft, which needs no tokenizer."""
    yield from _files(checkpoint)
    yield from _form(checkpoint)
    if not drafts and not checkpoint.speculator:
        yield from _tokenizer(checkpoint)
    if checkpoint.tensors and not checkpoint.missing_files and not is_mlx(checkpoint):
        yield from _layers(checkpoint)
        yield from _parts(checkpoint)
        yield from _shapes(checkpoint)


def is_mlx(checkpoint: Checkpoint) -> bool:
    """Return whether it is stored in MLX's format: `quantization` in config.json, and biases with scales."""
    quantization = checkpoint.config.get("quantization")
    declared = isinstance(quantization, Mapping) and "bits" in quantization and "config_groups" not in quantization
    packed = {tensor.name.removesuffix(".scales") for tensor in checkpoint.tensors if tensor.name.endswith(".scales")}
    return declared and any(
        tensor.name.endswith(".weight") and tensor.name.removesuffix(".weight") in packed
        for tensor in checkpoint.tensors
    )


def _files(checkpoint: Checkpoint) -> Iterator[Finding]:
    if checkpoint.missing_files:
        yield finding(
            "weights-missing",
            f"{_number(len(checkpoint.missing_files), 'weight file')} missing: {_some(checkpoint.missing_files)}",
            ref=checkpoint.ref,
        )
    elif checkpoint.other_weights and not checkpoint.tensors:
        yield from _other_weights(checkpoint)
    elif not checkpoint.tensors:
        yield finding("no-weights", "no safetensors files")
    if checkpoint.unindexed_files:
        yield finding(
            "not-in-index",
            f"{_number(len(checkpoint.unindexed_files), 'weight file')} in the folder but not in the index: "
            f"{_some(checkpoint.unindexed_files)}",
        )


def _other_weights(checkpoint: Checkpoint) -> Iterator[Finding]:
    if all(name.endswith(".gguf") for name in checkpoint.other_weights):
        yield finding("gguf", f"its weights are GGUF: {_some(checkpoint.other_weights)}")
        return
    yield finding("pickled-weights", f"its weights are pickled: {_some(checkpoint.other_weights)}")


def _form(checkpoint: Checkpoint) -> Iterator[Finding]:
    if twice := [tensor.name for tensor in checkpoint.tensors if tensor.name.startswith("model.model.")]:
        yield finding("unknown-names", f"{_number(len(twice), 'tensor')} named model.model.…: {twice[0]}")
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
    stored = {index for index, _, _ in _of_layers(checkpoint)}
    lacking = [index for index in range(len(checkpoint.text.layers)) if index not in stored]
    if lacking:
        shown = ", ".join(map(str, lacking[:5])) + (" …" if len(lacking) > 5 else "")
        yield finding(
            "layers-missing",
            f"of {len(checkpoint.text.layers)} layers, {_number(len(lacking), 'layer')} not stored: {shown}",
            ref=checkpoint.ref,
        )
    beyond = sorted(index for index in stored if index >= len(checkpoint.text.layers))
    if beyond:
        yield finding(
            "layers-beyond", f"layer {beyond[0]} is stored, but config.json has {len(checkpoint.text.layers)}"
        )


def _parts(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield the embedding table and norms that are not stored, and modules that only a single layer lacks."""
    if checkpoint.speculator and checkpoint.speculator.method != "mtp":
        return  # other heads take the target's
    lacking = [*_single(checkpoint), *_lacking(checkpoint)]
    if lacking:
        yield finding(
            "parts-missing",
            f"{_number(len(lacking), 'module')} not stored: {_some(tuple(lacking))}",
            ref=checkpoint.ref,
        )


def _single(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield which of the modules outside of the layers are not stored. An assistant may take the target's table."""
    stems = {_stem(tensor.name) for tensor in checkpoint.tensors if part_of(tensor.name) != "decoder layers"}
    wanted = ("norm",) if checkpoint.speculator else ("embed_tokens", "norm")
    if not checkpoint.text.tied_embeddings and not checkpoint.speculator:
        wanted = (*wanted, "lm_head")  # vllm/model_executor/models/gemma4.py makes one of its own
    for name in wanted:
        if not any(stem.rpartition(".")[2] == name and "tower" not in stem for stem in stems):
            yield name


def _lacking(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield modules of single layers that more than half of the layers of the same kind have."""
    layers = checkpoint.text.layers
    has: dict[int, set[str]] = {}
    for index, name, _ in _of_layers(checkpoint):
        if index < len(layers) and (stem := _stem(name)):
            has.setdefault(index, set()).add(stem)
    alike: dict[tuple[str, bool], list[int]] = {}
    for index in has:
        alike.setdefault((layers[index].kind, layers[index].shares_with is not None), []).append(index)
    for indexes in alike.values():
        usual = Counter(stem for index in indexes for stem in has[index])
        for index in indexes:
            yield from (
                f"layers.{index}.{stem}"
                for stem, count in sorted(usual.items())
                if stem not in has[index] and 2 * count > len(indexes) and _is_needed(stem)
            )


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _is_needed(stem: str) -> bool:
    """Return whether vLLM stops without it; the scales of attention have defaults."""
    return stem.endswith(("norm", "_proj")) or "experts" in stem.split(".")


def _shapes(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield matrices whose size differs from config.json."""
    wrong = list(_wrong(checkpoint))
    if wrong:
        tensor, rows, columns = wrong[0]
        has = " x ".join(map(str, tensor.shape))
        yield finding(
            "shapes-differ",
            f"{_number(len(wrong), 'tensor')} with other shapes than config.json declares: {tensor.name} has "
            f"{has}, but {rows} x {columns} is expected",
        )


def _wrong(checkpoint: Checkpoint) -> Iterator[tuple[Tensor, int, int]]:
    text = checkpoint.text
    if checkpoint.speculator and checkpoint.speculator.method != "mtp":
        return
    for tensor in checkpoint.tensors:
        if tensor.name.endswith("embed_tokens.weight") and part_of(tensor.name) == "embeddings":
            yield from _compared(checkpoint, tensor, text.vocab_size, text.hidden_size)
        backbone = checkpoint.speculator.target_hidden_size if checkpoint.speculator else None
        if backbone and tensor.name == "pre_projection.weight":
            yield from _compared(checkpoint, tensor, text.hidden_size, 2 * backbone)
        elif backbone and tensor.name == "post_projection.weight":
            yield from _compared(checkpoint, tensor, backbone, text.hidden_size)
    for index, name, tensor in _of_layers(checkpoint):
        if index >= len(text.layers):
            continue
        layer = text.layers[index]
        if name == "self_attn.q_proj.weight":
            yield from _compared(checkpoint, tensor, layer.heads * layer.head_dim, text.hidden_size)
        elif name == "self_attn.o_proj.weight":
            yield from _compared(checkpoint, tensor, text.hidden_size, layer.heads * layer.head_dim)
        elif name == "self_attn.k_proj.weight":
            yield from _compared(checkpoint, tensor, layer.kv_heads * layer.head_dim, text.hidden_size)
        elif name in ("mlp.gate_proj.weight", "mlp.up_proj.weight"):
            yield from _compared(checkpoint, tensor, text.inner(layer), text.hidden_size)


def _compared(checkpoint: Checkpoint, tensor: Tensor, rows: int, columns: int) -> Iterator[tuple[Tensor, int, int]]:
    if len(tensor.shape) != 2:
        return
    shape = tensor.shape
    if tensor.dtype == "U8" and checkpoint.quantization:
        shape = (shape[0], 2 * shape[1])
    elif tensor.dtype not in _FULL:
        return
    if shape != (rows, columns):
        yield tensor, rows, columns


def _of_layers(checkpoint: Checkpoint) -> Iterator[tuple[int, str, Tensor]]:
    for tensor in checkpoint.tensors:
        if part_of(tensor.name) == "decoder layers" and (match := _LAYER.search(tensor.name)):
            yield int(match[1]), match[2], tensor


def _number(count: int, what: str) -> str:
    return f"{count} {what}{' is' if count == 1 else 's are'}"


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


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
