"""Which files of a checkpoint vLLM reads."""

from __future__ import annotations

from typing import Final

WEIGHTS: Final = ".safetensors"
_SUFFIXES: Final = (WEIGHTS, ".json", ".jinja", ".model", ".txt", ".py")
"""Weights; configurations, index and tokenizer; chat templates; SentencePiece; merges; code for trust_remote_code."""
_LONGEST: Final = 255
"""Bytes of a file's name."""
_DUPLICATES: Final = ("consolidated",)
"""Beginnings of names under which the same weights lie again, for other programs."""


def is_needed(path: str) -> bool:
    """Return whether vLLM may read this file of a checkpoint, by its path in it.

    Folders hold other forms of the same weights (onnx/, original/, gguf), and so do .bin, .pth and .gguf files:
    vLLM takes safetensors of the top folder where there are any (model_executor/model_loader/weight_utils.py,
    0.19.0-0.33.0). A name that no file system or terminal should be given is none of them either.
    """
    return _is_plain(path) and path.endswith(_SUFFIXES) and not path.startswith(_DUPLICATES)


def _is_plain(name: str) -> bool:
    """Return whether it names a file of the top folder, on any system, that can be printed."""
    return not set(name) & {"/", "\\"} and name.isprintable() and len(name.encode()) <= _LONGEST


def is_weights(path: str) -> bool:
    """Return whether a file holds tensors."""
    return path.endswith(WEIGHTS)
