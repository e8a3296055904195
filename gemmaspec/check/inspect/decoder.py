"""The tensors of a decoder's layers by number and name, and how findings name several of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from gemmaspec.core.checkpoint.model import Checkpoint, Tensor
from gemmaspec.core.checkpoint.stored import part_of

_LAYER: Final = re.compile(r"\blayers\.([0-9]{1,4})\.(.+)$")


def of_layers(checkpoint: Checkpoint) -> Iterator[tuple[int, str, Tensor]]:
    """Yield each tensor of the decoder's layers: number of the layer, name inside it, tensor.

    Experts may be below `moe.`, as vLLM up to 0.24.0 reads them too (gemma4.py).
    """
    for tensor in checkpoint.tensors:
        if part_of(tensor.name) == "decoder layers" and (match := _LAYER.search(tensor.name)):
            yield int(match[1]), match[2].removeprefix("moe."), tensor


def stem_of(name: str) -> str:
    """Return the module of a tensor: its name without the last word."""
    return name.rpartition(".")[0]


def some(names: Sequence[str]) -> str:
    """Return the first three names."""
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def how_many(count: int, what: str) -> str:
    """Return a number with its noun and verb: 1 module is, 3 modules are."""
    if count == 1:
        return f"1 {what} is"
    return f"{count} {what}s are"
