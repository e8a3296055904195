"""Compare whole vocabularies if both are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.tokens import words
from gemmaspec.run.models.files import whole
from gemmaspec.run.models.folder import Folder
from gemmaspec.run.models.hub_cache import cached_snapshot
from gemmaspec.run.stack.paths import is_local

LIMIT: Final = 128 * 2**20
"""Bytes of tokenizer.json; a Gemma 4 has about 32 MB."""


def same_words(target: Checkpoint, draft: Checkpoint, *, cache_dir: Path | None = None) -> tuple[int, int] | None:
    """Return the number of tokens with the same id in both, and the target's total; None without local files.

    Both files are read completely. Raise CheckpointError if one is invalid.
    """
    mine, other = _raw(target, cache_dir), _raw(draft, cache_dir)
    if mine is None or other is None:
        return None
    numbers = words(mine, f"{target.ref}: tokenizer.json")
    others = words(other, f"{draft.ref}: tokenizer.json")
    return sum(others.get(token) == number for token, number in numbers.items()), len(numbers)


def _raw(checkpoint: Checkpoint, cache_dir: Path | None) -> bytes | None:
    if is_local(checkpoint.ref):
        return whole(Folder.local(checkpoint.ref), "tokenizer.json", most=LIMIT)
    folder = cached_snapshot(checkpoint.ref, checkpoint.revision, cache_dir)
    if folder:
        return whole(Folder(folder, revision=None), "tokenizer.json", most=LIMIT)
    return None
