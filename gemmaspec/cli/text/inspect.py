"""Print an inspected checkpoint and pair, for people and as JSON."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gemmaspec.check.inspect.examine import kind_of
from gemmaspec.cli.text import page
from gemmaspec.core.checkpoint.published.shipped import shipped_for
from gemmaspec.core.checkpoint.stored import parameters, part_of, parts, stored
from gemmaspec.core.sentences import readable_size
from gemmaspec.run.kept.attention import words

if TYPE_CHECKING:
    from gemmaspec.check.inspect.pair import Pairing
    from gemmaspec.check.use_cases.inspect import Inspected, Inspection
    from gemmaspec.core.checkpoint.model import Checkpoint, Layer, Quantization
    from gemmaspec.core.finding import Finding

_NAMES = 13
_VERDICTS = {"error": "ERROR", "warning": "WARNING", "patch": "PATCH", "note": "note"}


def inspection(inspection: Inspection, *, as_json: bool) -> None:
    """Print what `inspect` found."""
    page.answer(_json(inspection), _pages(inspection), as_json=as_json)


def _pages(inspection: Inspection) -> Iterator[str]:
    yield from _checkpoint_page(inspection.target)
    if inspection.draft and inspection.pairing:
        yield ""
        yield from _checkpoint_page(inspection.draft)
        yield ""
        yield from _pairing_page(inspection.pairing)
    if chosen := words(inspection.attention):
        yield ""
        yield f"attention: {chosen}"
    for line in inspection.graphs:
        yield f"WARNING: {line}"


def _checkpoint_page(look: Inspected) -> Iterator[str]:
    checkpoint = look.checkpoint
    yield from page.lines(_title(checkpoint), _rows(checkpoint), names=_NAMES)
    for line in _part_lines(checkpoint):
        yield f"  {line}"
    yield from _finding_lines(look.findings)


def _title(checkpoint: Checkpoint) -> str:
    if checkpoint.source == "shipped":
        known = shipped_for(checkpoint.ref)
        if known:
            return f"{checkpoint.ref}  ({known.says}; {known.source})"
        return checkpoint.ref
    where = {"folder": "folder", "cache": "Hugging Face cache", "hub": "Hugging Face Hub"}[checkpoint.source]
    if checkpoint.revision:
        commit = f", commit {checkpoint.revision[:12]}"
    else:
        commit = ""
    return f"{checkpoint.ref}  ({where}{commit}; {checkpoint.bytes_read / 1e6:.2f} MB read)"


def _rows(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    text = checkpoint.text
    size = f"{_count(parameters(checkpoint.tensors, checkpoint.text))} parameters, {readable_size(checkpoint.nbytes)}"
    yield "model", f"{checkpoint.architecture}, {checkpoint.dtype}, {size}"
    counts = Counter(dataclasses.replace(layer, shares_with=None, shares_target=False) for layer in text.layers)
    for index, (layer, number) in enumerate(counts.items()):
        yield ("layers" if index == 0 else ""), f"{number:>3} {_layer_words(layer)}"
    yield from _sharing(checkpoint)
    if text.experts:
        experts = f"; {text.experts} experts, {text.experts_per_token} per token"
    else:
        experts = ""
    yield "widths", f"hidden {text.hidden_size}, feed-forward {text.intermediate_size}{experts}"
    yield "vocabulary", f"{text.vocab_size} tokens, {_head_words(checkpoint)}"
    if text.hidden_size_per_layer_input:
        table = f"{text.vocab_size_per_layer_input} tokens x {len(text.layers)} layers"
        yield "per layer", f"{text.hidden_size_per_layer_input} wide embeddings, {table}"
    yield "context", f"{text.max_position_embeddings} tokens"
    yield "takes", ", ".join(kind for kind in ("text", "image", "video", "audio") if kind in checkpoint.modalities)
    yield from _speculator(checkpoint)
    yield "chat", _chat(checkpoint)
    yield from _quantization(checkpoint)


def _head_words(checkpoint: Checkpoint) -> str:
    if checkpoint.text.tied_embeddings:
        return "shared with the output head"
    if checkpoint.speculator and not any(part_of(tensor.name) == "lm_head" for tensor in checkpoint.tensors):
        return "without an output head of its own"
    return "with an output head of its own"


def _layer_words(layer: Layer) -> str:
    window = f", window {layer.window}" if layer.window else ""
    same = ", keys are values" if layer.keys_are_values else ""
    cache = f"{layer.kv_heads} KV head{'s' if layer.kv_heads > 1 else ''} of {layer.head_dim}"
    return f"{layer.kind:<8} {layer.heads} heads, {cache}{window}{same}"


def _sharing(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    layers = checkpoint.text.layers
    shared = sum(layer.shares_with is not None for layer in layers)
    if any(layer.shares_target for layer in layers):
        yield "KV sharing", "every layer reads the target's KV cache"
    elif shared:
        sources = sorted({layer.shares_with for layer in layers if layer.shares_with is not None})
        yield "KV sharing", f"the last {shared} layers read the cache of layers {' and '.join(map(str, sources))}"


def _speculator(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    speculator = checkpoint.speculator
    if speculator is None:
        return
    if speculator.target_layers:
        reads = f", target layers {', '.join(map(str, speculator.target_layers))}"
    else:
        reads = ""
    yield (
        "drafts",
        f"method {speculator.method}, hidden states of {speculator.target_hidden_size or 'any width'}{reads}",
    )
    if speculator.verifier:
        yield "", f"made for {speculator.verifier}"


def _count(number: int) -> str:
    if number >= 1e8:
        return f"{number / 1e9:.2f} B"
    return f"{number / 1e6:.2f} M"


def _chat(checkpoint: Checkpoint) -> str:
    kind, why = kind_of(checkpoint)
    template = {True: "chat template", False: "no chat template", None: "no tokenizer"}[checkpoint.has_chat_template]
    return f"{template}, {len(checkpoint.special_tokens)} control tokens; {kind or 'base or instruct'}: {why}"


def _quantization(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    declared = checkpoint.quantization
    yield "declared", _declared(declared) if declared else "no quantization"
    formats = stored(checkpoint.tensors, checkpoint.text).formats
    yield (
        "stored",
        ", ".join(f"{len(names)} module{'s' if len(names) != 1 else ''} as {kind}" for kind, names in formats.items())
        or "nothing",
    )
    if declared and declared.excluded:
        shown = ", ".join(declared.excluded[:6])
        if len(declared.excluded) > 6:
            more = f" and {len(declared.excluded) - 6} more"
        else:
            more = ""
        yield "excluded", f"{shown}{more}"


def _declared(declared: Quantization) -> str:
    if declared.group_size:
        groups = f", groups of {declared.group_size}"
    else:
        groups = ""
    if declared.kv_cache:
        cache = f", KV cache {declared.kv_cache}"
    else:
        cache = ""
    if declared.by_layer:
        layers = f", {len(declared.by_layer)} modules configured individually"
    else:
        layers = ""
    algorithm = ", ".join(declared.of_groups) if len(declared.of_groups) > 1 else declared.algorithm
    return f"{algorithm} by {declared.method} in {declared.declared_in}{groups}{cache}{layers}"


def _part_lines(checkpoint: Checkpoint) -> Iterator[str]:
    found_parts = parts(checkpoint.tensors, checkpoint.text)
    if found_parts:
        yield f"{'part':<22}{'size':>10}{'parameters':>14}  types"
    for part in found_parts:
        types = ", ".join(f"{name} {readable_size(nbytes)}" for name, nbytes in part.types.items())
        yield f"{part.name:<22}{readable_size(part.nbytes):>10}{part.parameters:>14}  {types}"


def _pairing_page(pairing: Pairing) -> Iterator[str]:
    needs = f" with {', '.join(pairing.patches)}" if pairing.patches else ""
    verdict = "they do NOT pair"
    if pairing.works:
        verdict = f"they pair{needs}"
    yield f"{verdict}; speculative.method: {pairing.method}"
    yield from _finding_lines(pairing.findings)


def _finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the findings, the worst first: what is wrong, what comes of it, and what helps."""
    for finding in sorted(findings, key=lambda finding: list(_VERDICTS).index(finding.severity)):
        yield f"  {_VERDICTS[finding.severity]:<7}  {finding.message}"
        if finding.impact:
            yield f"{' ' * 11}{finding.impact}"
        fixes = [f"patch {patch}" for patch in finding.patches]
        if finding.fix:
            fixes.append(finding.fix)
        if fixes:
            yield f"{' ' * 11}-> {', '.join(fixes)}"


def _json(inspection: Inspection) -> dict[str, Any]:
    pairing = inspection.pairing
    return {
        "ok": inspection.works,
        "target": _look_json(inspection.target),
        "draft": _look_json(inspection.draft) if inspection.draft else None,
        "pairing": {"works": pairing.works, "patches": pairing.patches, **vars(pairing)} if pairing else None,
        "attention": inspection.attention,
        "graphs": inspection.graphs,
    }


def _look_json(look: Inspected) -> dict[str, Any]:
    checkpoint = look.checkpoint
    kind, why = kind_of(checkpoint)
    in_files = stored(checkpoint.tensors, checkpoint.text)
    formats = {kind: len(names) for kind, names in in_files.formats.items()}
    return {
        **vars(checkpoint),
        "nbytes": checkpoint.nbytes,
        "parameters": parameters(checkpoint.tensors, checkpoint.text),
        "kind": kind,
        "kind_told_by": why,
        "parts": list(parts(checkpoint.tensors, checkpoint.text)),
        "stored": {**vars(in_files), "formats": formats},
        "findings": look.findings,
    }
