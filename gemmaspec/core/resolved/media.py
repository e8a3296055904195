"""What a target takes besides text, and what follows from it: masks, whole items, towers."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.sizes import Size
from gemmaspec.core.launcher import range_contains
from gemmaspec.core.profile.command import Command
from gemmaspec.core.releases import items
from gemmaspec.core.releases.items import Modality
from gemmaspec.core.resolved.answer import Unknown

Media = frozenset[Modality]
Tower = Literal["vision", "audio"]
TOWERS: Final[frozenset[Tower]] = frozenset({"vision", "audio"})
SEEN: Final[Media] = frozenset({"image", "video"})
_ALL: Final[Media] = frozenset({"image", "video", "audio"})
_NONE: Final[Media] = frozenset()
_UNREAD: Final = "the checkpoint was not read, and its name says no size"


def limits_of(command: Command) -> dict[str, int]:
    """Return how many of each kind a request may hold, as far as the profile says it."""
    limits: dict[str, int] = {}
    for argument in command.arguments:
        if argument.flag != "--limit-mm-per-prompt":
            continue
        if argument.keys:
            given = {argument.keys[0]: _json(argument.value)}
        else:
            given = _json(argument.value)
        for kind, value in given.items() if isinstance(given, dict) else ():
            if isinstance(value, dict):
                count = value.get("count")
            else:
                count = value
            if isinstance(count, int):
                limits[kind] = count
    return limits


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def media_of(command: Command, target: Checkpoint | None, size: Size | None) -> Media | Unknown:
    """Return what vLLM lets a request hold besides text.

    A modality is off where its limit is 0 (MultiModalConfig.get_limit_per_prompt in vllm/config/multimodal.py). Which
    ones a target has, its architecture says, and not which towers are stored: images and videos always, sound with an
    audio_config (Gemma4ProcessingInfo.get_supported_mm_limits in vllm/model_executor/models/gemma4_mm.py).
    """
    if command.switched("--language-model-only"):
        return _NONE
    limits = limits_of(command)
    allowed: Media = frozenset(kind for kind in _ALL if limits.get(kind) != 0)
    if not allowed:
        return _NONE
    accepted = _accepted(target, size)
    if isinstance(accepted, Unknown):
        return accepted
    return accepted & allowed


def _accepted(target: Checkpoint | None, size: Size | None) -> Media | Unknown:
    if target is not None:
        if "ForConditionalGeneration" not in target.architecture:
            return _NONE
        if "audio" in target.modalities:
            return _ALL
        return SEEN
    if size is None:
        return Unknown(_UNREAD)
    if size.large_towers:
        return SEEN
    return _ALL


def masks_of(vllm: str, media: Media | Unknown, target: Checkpoint | None, size: Size | None) -> bool | Unknown:
    """Return whether attention masks what a request holds besides text, so that it sees later tokens.

    is_mm_prefix_lm (vllm/transformers_utils/model_arch_config_convertor.py): while any modality is on, sound too. Up
    to 0.26 a model that can see images has the masks even where it serves text alone.
    """
    sees: bool | Unknown
    if target:
        sees = target.masks_images
    elif size:
        sees = size.masks
    else:
        sees = Unknown(_UNREAD)
    if sees is False:
        return False
    if range_contains("<0.27.0", vllm):
        return sees
    if media == _NONE:
        return False
    if isinstance(media, Unknown):
        return media
    return sees


def whole_items_of(
    vllm: str, command: Command, *, masks: bool | Unknown, media: Media | Unknown, cpu: bool
) -> bool | Unknown:
    """Return whether a batch must hold a whole image or video (disable_chunked_mm_input of the scheduler)."""
    if media == _NONE:
        return False
    if command.switched("--disable-chunked-mm-input"):
        if isinstance(media, frozenset):
            return True
        return media
    if items.wants_whole_items(vllm, cpu=cpu):
        return masks
    return False


def towers_of(media: Media | Unknown, *, unified: bool) -> frozenset[Tower]:
    """Return the encoders that vLLM loads; both where it is not known.

    One whose modalities are all off stays out (_mark_tower_model), but those of a unified model, which are small.
    """
    if unified or isinstance(media, Unknown):
        return TOWERS
    towers: set[Tower] = set()
    if media & SEEN:
        towers.add("vision")
    if "audio" in media:
        towers.add("audio")
    return frozenset(towers)
