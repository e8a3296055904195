"""The tiny target and its assistant in the form of the 12B, without weights: no encoders, and a processor of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.data import MODELS
from gemmaspec.run.models.dummy import processor_of

_UNIFIED: Final = "Gemma4UnifiedForConditionalGeneration"
_HEAD: Final = "Gemma4UnifiedAssistantForCausalLM"
_WIDTH: Final = 32
"""Of the embedding of an image's patches; the 12B's is 3,840."""


def tiny_unified(into: Path) -> tuple[Path, Path]:
    """Write target and assistant below a folder, and return both."""
    return _target(into / "tiny-12b"), _assistant(into / "tiny-12b-assistant")


def _target(folder: Path) -> Path:
    config = _copied("tiny-target", folder)
    config |= {"architectures": [_UNIFIED], "model_type": "gemma4_unified"}
    config["text_config"]["model_type"] = "gemma4_unified_text"
    config["vision_config"] = {
        "model_type": "gemma4_unified_vision",
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "model_patch_size": 48,
        "mm_embed_dim": _WIDTH,
        "mm_posemb_size": 1120,
        "output_proj_dims": _WIDTH,
        "num_soft_tokens": 280,
    }
    config["audio_config"] = {"model_type": "gemma4_unified_audio", "audio_embed_dim": 640}
    _write(folder / "config.json", config)
    _write(folder / "processor_config.json", processor_of(unified=True))
    return folder


def _assistant(folder: Path) -> Path:
    config = _copied("tiny-mtp", folder)
    config |= {"architectures": [_HEAD], "model_type": "gemma4_unified_assistant"}
    config["text_config"]["model_type"] = "gemma4_unified_text"
    _write(folder / "config.json", config)
    return folder


def _copied(name: str, folder: Path) -> dict[str, Any]:
    shutil.copytree(MODELS / name, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n")
