"""The Hugging Face cache: which commit of a model it has, and where."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def is_commit(revision: str | None) -> bool:
    """Return whether a revision is a commit hash, which never changes."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def cached_snapshot(model: str, revision: str | None, cache_dir: Path | None) -> Path | None:
    """Return the folder of a model's snapshot with a config.json; None if it is missing.

    `cache_dir` is the folder `hub` of a HF_HOME; None means the user's own.
    """
    from huggingface_hub import constants

    if cache_dir is None:
        cache = Path(constants.HF_HUB_CACHE)
    else:
        cache = cache_dir
    if not (cache / f"models--{model.replace('/', '--')}").is_dir():  # the client itself takes 0.3 s to import
        return None
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model, "config.json", cache_dir=cache_dir, revision=revision)
    if isinstance(config, str):
        return Path(config).parent
    return None
