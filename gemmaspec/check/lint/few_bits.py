"""GS232: checkpoints of few bits, and the releases that read them.

Releases, read in their wheels: compressed_tensors_embedding.py and CompressedTensorsWNA8O8Int are in 0.23.0 and not in
0.22.1; WNA16_SUPPORTED_TYPES_MAP of compressed_tensors_wNa16.py has 4 and 8 bits up to 0.24.0, and 2 to 8 from 0.25.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.quantization import ROLES
from gemmaspec.check.lint.rule import Issue, Subject, rule
from gemmaspec.core.checkpoint.model import Checkpoint

_OUTPUTS: Final = re.compile(r"W[2-8]A8O8")

_FEW_BITS: Final = re.compile(r"W[23567]A16")

_TABLES_FROM: Final = "0.23.0"

_FEW_BITS_FROM: Final = "0.25.0"

_RUN_WITH: Final = "0.26.0"


@rule("GS232", "error")
def too_few_bits(subject: Subject) -> Iterator[Issue]:
    """A compressed-tensors checkpoint of 2 bits or with scales for outputs, in a release that cannot load it."""
    for role in ROLES:
        checkpoint = subject.checkpoint(role)
        found = _needs(checkpoint) if checkpoint else None
        if found is None:
            continue
        what, since = found
        if subject.runs(f"<{since}"):
            message = f"vLLM {subject.vllm} cannot load {what}, which the checkpoint has; it can from {since} on"
            yield Issue(path=(role, "model"), message=message, fix=f"use vLLM {since} or later")
        elif subject.runs(f"<{_RUN_WITH}"):
            message = f"the checkpoint has {what}: published runs of it are with vLLM {_RUN_WITH} and later"
            yield Issue(path=(role, "model"), message=message, fix=f"use {_RUN_WITH} or later", severity="note")


def _needs(checkpoint: Checkpoint) -> tuple[str, str] | None:
    """Return what only later releases load, and the first of them."""
    if checkpoint.quantization:
        groups = checkpoint.quantization.of_groups
    else:
        groups = ()
    weights = [group for group in groups if _FEW_BITS.fullmatch(group)]
    if weights:
        return f"weights of {weights[0]} (few bits, 16-bit activations)", _FEW_BITS_FROM
    for group in groups:
        if _OUTPUTS.fullmatch(group) or group.endswith("embeddings"):
            return (f"modules of {group}", _TABLES_FROM)
    return None
