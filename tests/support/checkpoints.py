"""Checkpoints for tests that need no files: a config and the shapes of its tensors, understood."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from gemmaspec.core.checkpoint.config import describe
from gemmaspec.core.checkpoint.fields import Fields
from gemmaspec.core.checkpoint.model import Checkpoint, Tensor
from gemmaspec.core.checkpoint.quantization import declared
from tests.support import shapes


def checkpoint(
    config: Mapping[str, Any],
    tensors: shapes.Shapes,
    *,
    ref: str = "some/gemma-4-it",
    separate: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Checkpoint:
    """As open_checkpoint would describe it."""
    fields = Fields(config, "config.json")
    described = describe(fields)
    plain = Checkpoint(
        ref=ref,
        revision=None,
        architecture=described.architecture,
        model_type=described.model_type,
        dtype=described.dtype,
        text=described.text,
        modalities=described.modalities,
        quantization=declared(fields, Fields(separate, "hf_quant_config.json") if separate else None),
        tensors=tuple(
            Tensor(name=name, dtype=dtype, shape=shape, nbytes=shapes.SIZES[dtype] * math.prod(shape))
            for name, (dtype, shape) in tensors.items()
        ),
        special_tokens=dict(shapes.SPECIAL),
        tokenizer_digest="a" * 64,
        has_chat_template=True,
        speculator=described.speculator,
        config=config,
    )
    return dataclasses.replace(plain, **changes)


def gemma(size: str, *, packed: bool = False, ref: str | None = None, **changes: Any) -> Checkpoint:
    """A published size, in BF16 or as ModelOpt's NVFP4."""
    config = shapes.config(size)
    tensors = shapes.tensors(config)
    name = ref or f"some/gemma-4-{size}-it"
    if packed:
        return checkpoint(config, shapes.nvfp4(tensors), ref=name, separate=shapes.modelopt(), **changes)
    return checkpoint(config, tensors, ref=name, **changes)


def assistant(size: str, **changes: Any) -> Checkpoint:
    """The MTP draft of a size."""
    config = shapes.assistant_config(size)
    ref = changes.pop("ref", f"google/gemma-4-{size}-it-assistant")
    return checkpoint(config, shapes.assistant_tensors(config), ref=ref, tokenizer_digest=None, **changes)


def head(**changes: Any) -> Checkpoint:
    """An EAGLE-3 head for the 31B."""
    config = shapes.eagle3_config(hidden=changes.pop("hidden", 5376))
    ref = changes.pop("ref", "some/gemma-4-31B-it-speculator.eagle3")
    own = {"has_chat_template": None, "special_tokens": {}, "tokenizer_digest": None}
    return checkpoint(config, shapes.eagle3_tensors(config), ref=ref, **{**own, **changes})
