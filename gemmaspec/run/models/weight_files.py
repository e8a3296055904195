"""Which files of a checkpoint hold its weights: those of its index, or those that are numbered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gemmaspec.core.checkpoint.fields import Fields, load_object
from gemmaspec.core.errors import CheckpointError
from gemmaspec.run.models.files import CheckpointFiles, whole

INDEX: Final = "model.safetensors.index.json"
_INDEX_LIMIT: Final = 32 * 2**20
_MOST_FILES: Final = 512
_PICKLED: Final = re.compile(r"pytorch_model.*\.(?:bin|pt)")
_NUMBERED: Final = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.safetensors")


@dataclass(frozen=True, kw_only=True)
class WeightFiles:
    """The files of a checkpoint's weights, by name."""

    read: tuple[str, ...]
    """Those that vLLM would read, and that are there."""
    missing: tuple[str, ...]
    """Those that it would read, and that are not."""
    unindexed: tuple[str, ...]
    """Safetensors files that it would not read."""

    @property
    def whole(self) -> bool:
        """Whether there are weights, and none of them is missing."""
        return bool(self.read) and not self.missing


def weight_files(files: CheckpointFiles) -> WeightFiles:
    """Return the weight files that vLLM would read, the missing ones among them, and those that it leaves alone.

    As in vLLM (filter_duplicate_safetensors_files), the index decides; without one, the numbers in the file names do;
    without numbers, every safetensors file counts. Raise CheckpointError for an invalid index.
    """
    there = {name for name in files.sizes if name.endswith(".safetensors")}
    promised = _indexed(files) or _numbered(there) or there
    if len(promised) > _MOST_FILES:
        raise CheckpointError(f"{len(promised)} weight files, more than the limit of {_MOST_FILES}")
    others = sorted(name for name in there - promised if not name.startswith("consolidated"))
    return WeightFiles(
        read=tuple(sorted(promised & there)), missing=tuple(sorted(promised - there)), unindexed=tuple(others)
    )


def other_weights(files: CheckpointFiles) -> tuple[str, ...]:
    """Return the weight files in other formats: torch's pickles, and GGUF."""
    names = (name for name in files.sizes if name.endswith(".gguf") or _PICKLED.fullmatch(name))
    return tuple(sorted(name for name in names if name.isprintable()))


def _numbered(there: set[str]) -> set[str]:
    """Return the only numbered set among the files, including missing names; empty if there are none or several."""
    sets: Mapping[tuple[str, int], set[str]] = {}
    for name in there:
        match = _NUMBERED.fullmatch(name)
        if match and 0 < int(match[3]) <= _MOST_FILES:
            sets = {**sets, (match[1], int(match[3])): set()}
    if len(sets) != 1 or any(not _NUMBERED.fullmatch(name) for name in there):
        return set()
    stem, total = next(iter(sets))
    return {f"{stem}-{number:05d}-of-{total:05d}.safetensors" for number in range(1, total + 1)}


def _indexed(files: CheckpointFiles) -> set[str]:
    raw = whole(files, INDEX, most=_INDEX_LIMIT)
    if raw is None:
        return set()
    table = Fields(load_object(raw, INDEX), INDEX).section("weight_map")
    if table and _all_texts(table):
        values = set(table.content.values())
    else:
        values = set()
    if any("/" in name or not name.endswith(".safetensors") for name in values):
        raise CheckpointError(f"{INDEX}: contains the path of a file outside the checkpoint")
    return values


def _all_texts(table: Fields) -> bool:
    if all(isinstance(value, str) and value.isprintable() for value in table.content.values()):
        return True
    raise CheckpointError(f"{table.where}: every file's name must be a text")
