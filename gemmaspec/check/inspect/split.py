"""Whether the experts of a mixture can be cut for several GPUs.

No NVFP4 kernel takes a part of an expert of the 26B-A4B, whose 704 columns leave 352 on each of two GPUs (vllm#39595).
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmaspec.check.inspect.meaning import finding
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.finding import Finding


def split_findings(checkpoint: Checkpoint, *, gpus: int, whole: bool) -> Iterator[Finding]:
    """Yield what several GPUs cannot do with its experts.

    `gpus`: over how many tensors are cut; 1 for a checkpoint that no profile serves. `whole`: expert parallelism.
    """
    quantization, text = checkpoint.quantization, checkpoint.text
    if (
        not text.experts
        or not text.expert_inner
        or quantization is None
        or "NVFP4" not in (quantization.algorithm or "")
    ):
        return
    if whole:
        return
    stored = f"experts of {text.expert_inner} columns are stored in NVFP4"
    if gpus > 1:
        message = f"{stored}, and tensor_parallel_size {gpus} leaves {text.expert_inner // gpus} on each GPU"
        yield finding("experts-not-split", message, severity="error")
    else:
        yield finding("experts-not-split", f"{stored}, of which no kernel takes a part")
