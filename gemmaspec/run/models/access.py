"""Check whether this user may read a model, and which commit would run: on the Hub, or in the cache only."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.models.hub import SECONDS, Unreachable, asked_again, refusals
from gemmaspec.run.models.hub_cache import cached_snapshot, is_commit

ON: Final = {"1", "ON", "YES", "TRUE"}
"""The values that huggingface_hub accepts as true in its variables."""

_LARGEST_INDEX: Final = 64 * 1024 * 1024
_SHARD: Final = re.compile(r"-\d{5}-of-(\d{5})\.safetensors$")


def is_offline() -> bool:
    """Return whether this user disabled the Hub (HF_HUB_OFFLINE)."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ON


def check_access(model: str, revision: str | None, *, role: str) -> str:
    """Return the commit of a revision, of a model whose files this user may read.

    Raise Unreachable if the Hub does not answer; EnvironmentMissing with the next step if the model is gated, private
    or missing.
    """
    from huggingface_hub import HfApi

    with asked(model, revision, role=role):
        asked_again(lambda: HfApi().auth_check(model))
        commit = asked_again(lambda: HfApi().model_info(model, revision=revision, timeout=SECONDS)).sha
        if not is_commit(commit):
            raise Unreachable(f"the Hub returned no commit of {model}")
    return str(commit)


def cached_commit(model: str, revision: str | None, *, cache: Path | None) -> str | None:
    """Return the cached commit of a revision; None if the cache has no config.json for it."""
    snapshot = cached_snapshot(model, revision, cache)
    if snapshot and is_commit(snapshot.name):
        return snapshot.name
    return None


def is_whole(model: str, revision: str | None, *, cache: Path | None) -> bool:
    """Return whether the cache has the configuration and all weights of a model, so that a server needs no Hub."""
    return in_cache(model, revision, cache=cache)[1]


def in_cache(model: str, revision: str | None, *, cache: Path | None) -> tuple[str | None, bool]:
    """Return the cached commit of a revision, None without its config.json, and whether all of the model is there."""
    folder = cached_snapshot(model, revision, cache)
    if folder is None:
        return None, False
    return folder.name if is_commit(folder.name) else None, _all_files(folder)


def _all_files(folder: Path) -> bool:
    index = folder / "model.safetensors.index.json"
    try:
        if not index.exists():
            return _all_shards([file.name for file in folder.glob("*.safetensors")])
        with index.open("rb") as file:
            weights = json.loads(file.read(_LARGEST_INDEX))["weight_map"].values()
        return all((folder / str(name)).is_file() for name in set(map(str, weights)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _all_shards(names: Sequence[str]) -> bool:
    """Return whether weights without an index are complete: one file, or as many as their names state."""
    told = (int(match[1]) for name in names if (match := _SHARD.search(name)))
    return bool(names) and max(told, default=1) <= len(names)


@contextlib.contextmanager
def asked(model: str, revision: str | None, *, role: str) -> Iterator[None]:
    """Turn the Hub's refusals into errors that name the key of the profile."""
    try:
        with refusals(model, revision):
            yield
    except Unreachable as error:
        raise Unreachable(f"{role}.model: {error.message}", hint=error.hint) from None
    except EnvironmentMissing as error:
        raise EnvironmentMissing(f"{role}.model: {error.message}", hint=error.hint) from None
