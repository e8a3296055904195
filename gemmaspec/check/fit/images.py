"""Memory of images and videos while vLLM measures its peak.

profile_run passes as many of the largest item through the tower as a batch holds: in the first model runner
(vllm/v1/worker/gpu_model_runner.py) in every release, in the second (gpu/model_runner.py there) from 0.27.0 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from packaging.version import Version

from gemmaspec.check.fit.demand import Demand
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.profile.device import Device
from gemmaspec.core.releases.items import Item, largest_item

_PIXELS: Final = 3 * 16 * 16
"""Numbers of a patch."""
_ANY_NUMBER: Final = 999
"""Items that a request may hold where limit_mm_per_prompt does not say (vllm/config/multimodal.py)."""


def sees_images(target: Checkpoint, demand: Demand) -> bool:
    """Return whether the target takes images while it runs."""
    return "vision" in demand.towers and "image" in target.modalities and largest_item(demand.media) is not None


def encoding(target: Checkpoint, demand: Demand, device: Device) -> tuple[int, str] | None:
    """Return bytes that the tower takes for them, and the formula; None where vLLM does not try it."""
    item = largest_item(demand.media)
    if item is None or not (demand.runner == "v1" or Version(demand.vllm) >= Version("0.27.0")):
        return None
    number = _items(item, demand)
    frames = number * item.frames
    chunk = min(frames, _chunk(item, target, demand, device))
    each = _of_a_patch(target, demand)
    nbytes = chunk * item.patches * each + frames * item.patches * 2 * _PIXELS
    things = f"{number} {item.modality}{'s' if number > 1 else ''}"
    return (
        nbytes,
        f"{things}, {chunk} of {frames} concurrent frames x {item.patches} patches x {each:,} bytes, and pixels",
    )


def _items(item: Item, demand: Demand) -> int:
    """Return MultiModalBudget._get_max_items (vllm/multimodal/encoder_budget.py)."""
    for_one = max(1, min(demand.media.get(item.modality, _ANY_NUMBER), demand.max_model_len // item.tokens))
    return max(1, min(demand.max_num_batched_tokens // item.tokens, demand.max_num_seqs * for_one))


def _chunk(item: Item, target: Checkpoint, demand: Demand, device: Device) -> int:
    """Return the frames per pass of the tower: Gemma4ForConditionalGeneration._encoder_chunk, 1 before 0.22.0.

    It takes half of the free memory where that is less than a tenth of all, which is not followed here.
    """
    if Version(demand.vllm) < Version("0.22.0"):
        return 1
    return max(1, device.memory // 10 // (item.patches * 4 * 8 * _positions(target)))


def _of_a_patch(target: Checkpoint, demand: Demand) -> int:
    """Return bytes that are alive for each patch at the peak.

    transformers before 5.10.1 writes a patch's place as a row of 2 x positions numbers, in int64 and then in bfloat16
    (Gemma4VisionPatchEmbedder); releases from 0.29.0 on come with a later one, which looks it up. Then a layer is the
    peak. That was counted tensor by tensor on a CPU with transformers 5.19.0 (35,347 bytes where this says 35,040), and
    not measured on a GPU.
    """
    hidden, inner = _number(target, "hidden_size", 1152), _number(target, "intermediate_size", 4304)
    if Version(demand.vllm) >= Version("0.29.0"):
        return 2 * (4 * hidden + 3 * inner)
    return 2 * _positions(target) * (8 + 2) + 2 * (_PIXELS + hidden)


def _positions(target: Checkpoint) -> int:
    return _number(target, "position_embedding_size", 10240)


def _number(target: Checkpoint, key: str, otherwise: int) -> int:
    """Return a number of the tower's config; `otherwise` is the 31B's, the larger one."""
    vision = target.config.get("vision_config")
    if isinstance(vision, Mapping):
        value = vision.get(key)
    else:
        value = None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return otherwise
