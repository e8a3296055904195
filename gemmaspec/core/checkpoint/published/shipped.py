"""Published checkpoints whose shapes ship with gemmaspec, so that answers about them need no network. Pure.

A configuration ships, with the names, types and shapes of its tensors, but no weights: data/headers.json, which
tools/published/record.py writes. A publisher can change a checkpoint at any time. Every answer that uses these shapes
says so, with their revision if it was recorded.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.checkpoint.config import describe
from gemmaspec.core.checkpoint.fields import Fields
from gemmaspec.core.checkpoint.model import Checkpoint, Tensor
from gemmaspec.core.checkpoint.quantization import declared
from gemmaspec.core.checkpoint.sizes import SIZES, size_called
from gemmaspec.core.checkpoint.training import is_qat

DATA: Final = Path(__file__).parent / "data"
NOT_RECORDED: Final = "revision not recorded"
_SIZES: Final = {"BF16": 2, "F8_E4M3": 1, "I8": 1, "U8": 1, "F32": 4, "I32": 4, "I64": 8}
_LAYER: Final = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0, "attention_bias": False}
"""What vLLM reads of a head's layers in addition to their shapes."""
_MASK: Final = 4
"""Gemma 4's <mask>. A head that drafts a block at once needs a token for its empty places (`mask_token_id`, required by
vllm/transformers_utils/configs/speculators/algos.py); which one each published head has is not recorded, and where the
weights are random it does not matter."""
_BLOCKS: Final = ("dflash2", "dspark")


@dataclass(frozen=True, kw_only=True)
class PublishedCheckpoint:
    """The facts about one published checkpoint."""

    ref: str
    kind: str
    """model, assistant, eagle3, dflash2 or dspark."""
    size: str
    base: bool
    towers: bool
    revision: str | None
    date: str | None
    source: str
    """The source of the shapes."""

    @property
    def says(self) -> str:
        """Return the note for an answer that uses these shapes."""
        return f"using the shapes of {self.ref} that ship with gemmaspec ({self.revision or NOT_RECORDED})"


@functools.cache
def shipped() -> dict[str, PublishedCheckpoint]:
    """Return every checkpoint whose shapes ship, by its id in lower case."""
    raw = json.loads((DATA / "models.json").read_text(encoding="utf-8"))["models"]
    return {entry["ref"].lower(): _entry(entry) for entry in raw}


def shipped_for(ref: str) -> PublishedCheckpoint | None:
    """Return the shipped facts about a Hugging Face id; None if there are none."""
    return shipped().get(ref.lower())


def draft_for(model: str) -> str | None:
    """Return Google's MTP head for a target, by the target's name; None for a base model and for another family.

    A target that was trained with its quantization has a head of its own.
    """
    name = model.rstrip("/").rpartition("/")[2]
    if not re.search(r"gemma-?4", name, re.IGNORECASE) or not re.search(r"[-_]it(?![a-z])", name, re.IGNORECASE):
        return None
    size = size_called(name)
    if size is None:
        return None
    for entry in shipped().values():
        is_its_head = entry.kind == "assistant" and SIZES.get(entry.size) is size
        if is_its_head and is_qat(entry.ref) is is_qat(name):
            return entry.ref
    return None


def checkpoint_of(known: PublishedCheckpoint) -> Checkpoint:
    """Return the checkpoint as its headers would describe it, without the tokenizer."""
    return checkpoint_from(known, _config(known), _headers()[known.ref]["tensors"])


def shipped_checkpoint(ref: str) -> Checkpoint | None:
    """Return the checkpoint of a Hugging Face id by the shapes that ship; None if there are none."""
    known = shipped_for(ref)
    if known:
        return checkpoint_of(known)
    return None


def checkpoint_from(known: PublishedCheckpoint, config: dict[str, Any], rows: Iterable[Sequence[Any]]) -> Checkpoint:
    """Return the checkpoint of a configuration and of rows as in headers.json."""
    fields = Fields(config, "config.json")
    described = describe(fields)
    tensors = tuple(itertools.chain.from_iterable(_tensors(*row) for row in rows))
    return Checkpoint(
        ref=known.ref,
        revision=known.revision,
        architecture=described.architecture,
        model_type=described.model_type,
        dtype=described.dtype,
        text=described.text,
        modalities=described.modalities,
        quantization=declared(fields, None),
        tensors=tensors,
        has_chat_template=None if known.kind != "model" else not known.base,
        speculator=described.speculator,
        source="shipped",
        config=config,
    )


def servable_config(known: PublishedCheckpoint) -> dict[str, Any]:
    """Return config.json with all that vLLM reads to build the model.

    Where images are served, vLLM needs the encoder's shapes, also of a checkpoint that is stored without it.
    """
    config = _config(known)
    if known.kind == "model":
        wanted = ("model", known.size, True)
        whole = _config(next(one for one in shipped().values() if (one.kind, one.size, one.towers) == wanted))
        for part in ("vision_config", "audio_config"):
            config[part] = config.get(part) or whole[part]
    if layer := config.get("transformer_layer_config"):
        for name, value in _LAYER.items():
            layer.setdefault(name, value)
    if known.kind in _BLOCKS:
        config.setdefault("mask_token_id", _MASK)
    return config


def _entry(entry: dict[str, Any]) -> PublishedCheckpoint:
    return PublishedCheckpoint(
        ref=entry["ref"],
        kind=entry["kind"],
        size=entry["size"],
        base=entry.get("base", False),
        towers=entry.get("towers", True),
        revision=entry["revision"],
        date=entry["date"],
        source=entry["source"],
    )


@functools.cache
def _headers() -> dict[str, Any]:
    headers: dict[str, Any] = json.loads((DATA / "headers.json").read_text(encoding="utf-8"))
    return headers


def _config(known: PublishedCheckpoint) -> dict[str, Any]:
    config: dict[str, Any] = copy.deepcopy(_headers()[known.ref]["config"])
    return config


def _tensors(name: str, dtype: str, shape: list[int], *numbers: str) -> Iterator[Tensor]:
    """Yield the tensors of a row: its name has a {} for each list of numbers, such as 0-4,6-10."""
    nbytes = _SIZES[dtype] * math.prod(shape)
    for chosen in itertools.product(*map(_numbers, numbers)):
        yield Tensor(name=name.format(*chosen), dtype=dtype, shape=tuple(shape), nbytes=nbytes)


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
