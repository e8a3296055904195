"""The Hugging Face Hub and its cache on this disk: may this user have a model, and which commit is it?"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gemmaspec.errors import EnvironmentMissing, GemmaspecError

TIMEOUT_S: Final = 10.0
_DISK: Final = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS}
ON: Final = {"1", "ON", "YES", "TRUE"}
"""What huggingface_hub takes for yes in its variables."""


class Unreachable(EnvironmentMissing):
    """The Hub did not answer, or answered what is none of its answers."""


def is_offline() -> bool:
    """Whether this user has switched the Hub off (HF_HUB_OFFLINE)."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ON


def page(model: str) -> str:
    """Where a person reads about a model."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{model}"


def check_access(model: str, revision: str | None, *, role: str) -> str:
    """The commit that a revision means, of a model whose files this user may read.

    Raises Unreachable, EnvironmentMissing with what to do for a model that is gated, private or not there.
    """
    from huggingface_hub import HfApi

    with answered(model, revision, role=role):
        HfApi().auth_check(model)
        found = HfApi().model_info(model, revision=revision, timeout=TIMEOUT_S)
    return _commit(found.sha, model)


def cached_commit(model: str, revision: str | None, *, cache: Path | None) -> str | None:
    """The commit under which the cache would answer for a revision; None when it has no config.json of it."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json", cache_dir=cache, revision=revision)
    return Path(found).parent.name if isinstance(found, str) else None


@contextlib.contextmanager
def answered(model: str, revision: str | None, *, role: str) -> Iterator[None]:
    """The Hub's refusals as sentences. No text of its client is passed on: it may name what was sent."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except GatedRepoError:
        raise EnvironmentMissing(
            f"{role}.model: {model} is gated, and this token has not been let in",
            hint=f"accept the terms at {page(model)}, then: hf auth login, or export HF_TOKEN=…",
        ) from None
    except RevisionNotFoundError:
        raise EnvironmentMissing(f"{role}.model: {model} has no revision {revision}") from None
    except RepositoryNotFoundError:
        raise EnvironmentMissing(
            f"{role}.model: the Hub knows no model {model}, or it is private and the token may not see it",
            hint="check the spelling; for a private model: export HF_TOKEN=…",
        ) from None
    except GemmaspecError:
        raise
    except HfHubHTTPError as error:
        raise _refused(model, error.response.status_code, role) from None
    except Exception as error:  # the Hub's client brings its own HTTP library, and has changed it before
        if isinstance(error, OSError) and error.errno in _DISK:
            raise EnvironmentMissing(
                f"{role}.model: {model} cannot be written to the cache: {error.strerror}",
                hint="df -h ~/.cache/huggingface",
            ) from None
        raise Unreachable(
            f"{role}.model: could not ask the Hub about {model} ({type(error).__name__})", hint=f"curl -I {page(model)}"
        ) from None


def _refused(model: str, status: int, role: str) -> EnvironmentMissing:
    if status in (401, 403):
        return EnvironmentMissing(
            f"{role}.model: the Hub refuses this token for {model} ({status}): wrong, expired, or without read access",
            hint="hf auth login    # or export HF_TOKEN=… with read access",
        )
    return Unreachable(
        f"{role}.model: could not ask the Hub about {model} (it answers {status})", hint=f"curl -I {page(model)}"
    )


def _commit(sha: str | None, model: str) -> str:
    if not sha or len(sha) != 40 or not set(sha) <= set("0123456789abcdef"):
        raise Unreachable(f"the Hub names no commit of {model}")
    return sha
