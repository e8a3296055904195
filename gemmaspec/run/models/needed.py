"""Which files of a checkpoint vLLM reads."""

from __future__ import annotations

from typing import Final

WEIGHTS: Final = ".safetensors"
_SUFFIXES: Final = (WEIGHTS, ".json", ".jinja", ".model", ".txt", ".py")
"""Weights; configurations, index and tokenizer; chat templates; SentencePiece; merges; code for trust_remote_code."""
_LONGEST: Final = 255
"""Bytes of a file's name."""
_DUPLICATES: Final = ("consolidated",)
"""Prefixes of names of copies of the same weights for other programs."""


def is_needed(path: str) -> bool:
    """Return whether vLLM may read this file of a checkpoint, by its path.

    Folders (onnx/, original/, gguf) and .bin, .pth and .gguf files contain other forms of the same weights. vLLM
    prefers safetensors of the top folder (model_executor/model_loader/weight_utils.py, every release). Names that are
    unsafe for a file system or a terminal are rejected too.
    """
    return _is_plain(path) and path.endswith(_SUFFIXES) and not path.startswith(_DUPLICATES)


def _is_plain(name: str) -> bool:
    """Return whether the name is printable and names a file of the top folder on any system."""
    return not set(name) & {"/", "\\"} and name.isprintable() and len(name.encode()) <= _LONGEST


def is_weights(path: str) -> bool:
    """Return whether a file contains tensors."""
    return path.endswith(WEIGHTS)
