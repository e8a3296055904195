"""Which files of a checkpoint hold its weights: those of its index, or those that are numbered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gemmaspec.core.checkpoint.fields import Fields, load_object
from gemmaspec.core.errors import CheckpointError
from gemmaspec.run.models.files import CheckpointFiles, whole

INDEX: Final = "model.safetensors.index.json"
_INDEX_LIMIT: Final = 32 * 2**20
_MOST_FILES: Final = 512
_PICKLED: Final = re.compile(r"pytorch_model.*\.(?:bin|pt)")
_NUMBERED: Final = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.safetensors")


def weight_files(files: CheckpointFiles) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the weight files that vLLM would read, and the missing ones among them.

    As in vLLM (filter_duplicate_safetensors_files), the index decides; without one, the numbers in the file names do;
    without numbers, every safetensors file counts. Raise CheckpointError for an invalid index.
    """
    there = _safetensors(files)
    promised = _indexed(files) or _numbered(there) or there
    if len(promised) > _MOST_FILES:
        raise CheckpointError(f"{len(promised)} weight files, more than the limit of {_MOST_FILES}")
    return tuple(sorted(promised & there)), tuple(sorted(promised - there))


def unindexed(files: CheckpointFiles, read: tuple[str, ...]) -> tuple[str, ...]:
    """Return the safetensors files that vLLM would not read."""
    return tuple(sorted(name for name in _safetensors(files) - set(read) if not name.startswith("consolidated")))


def other_weights(files: CheckpointFiles) -> tuple[str, ...]:
    """Return the weight files in other formats: torch's pickles, and GGUF."""
    names = (name for name in files.sizes if name.endswith(".gguf") or _PICKLED.fullmatch(name))
    return tuple(sorted(name for name in names if name.isprintable()))


def _safetensors(files: CheckpointFiles) -> set[str]:
    return {name for name in files.sizes if name.endswith(".safetensors")}


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
