"""Are the models there? Asked before anything is started, since a server takes minutes to find out."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from gemmaspec.errors import EnvironmentMissing
from gemmaspec.files import state_dir
from gemmaspec.profile.model import Profile
from gemmaspec.stack.paths import is_local, on_host

MAKER = Path(__file__).parent.parent / "tiny" / "make.py"
TINY = "state:tiny/"


def check_models(profile: Profile, *, note: Callable[[str], None]) -> None:
    """Raise EnvironmentMissing for a folder without a config, or a Hugging Face model this user cannot read.

    A Hub that does not answer is only noted: the models may be in the cache.
    """
    for role, model, revision in _models(profile):
        if model.startswith(TINY):
            continue  # made when it is not there
        if is_local(model):
            _check_folder(role, model)
        elif not _offline(profile) and not _cached(profile, model, revision):
            _check_hub(role, model, revision, note)


def wants_tiny(profile: Profile) -> bool:
    """Whether a profile uses the tiny pair and it has not been made yet."""
    return any(
        model.startswith(TINY) and not (Path(on_host(model, state=state_dir())) / "config.json").is_file()
        for _, model, _ in _models(profile)
    )


def make_tiny(command: tuple[str, ...]) -> None:
    """Make the tiny pair; `command` runs the maker with a Python that has torch and transformers."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise EnvironmentMissing(f"the tiny models could not be made:\n{last}")


def _models(profile: Profile) -> Iterator[tuple[str, str, str | None]]:
    yield "target", profile.target.model, profile.target.revision
    if profile.draft:
        yield "draft", profile.draft.model, profile.draft.revision


def _offline(profile: Profile) -> bool:
    value = profile.env.get("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", ""))
    return value.upper() in {"1", "ON", "YES", "TRUE"}


def _cached(profile: Profile, model: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache

    home = profile.caches.huggingface
    cache = Path(on_host(home, state=state_dir())) / "hub" if home else None
    return isinstance(try_to_load_from_cache(model, "config.json", cache_dir=cache, revision=revision), str)


def _check_folder(role: str, model: str) -> None:
    folder = Path(on_host(model, state=state_dir()))
    if not folder.is_dir():
        raise EnvironmentMissing(f"{role}.model: there is no folder {folder}")
    if not (folder / "config.json").is_file():
        raise EnvironmentMissing(f"{role}.model: {folder} holds no config.json, so it is not a model")


def _check_hub(role: str, model: str, revision: str | None, note: Callable[[str], None]) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        HfApi().auth_check(model)
        HfApi().model_info(model, revision=revision, timeout=10)
    except GatedRepoError:
        raise EnvironmentMissing(
            f"{role}.model: {model} is gated, and this token has not been let in",
            hint=f"accept the terms on the page of {model}, then: hf auth login, or export HF_TOKEN=…",
        ) from None
    except RevisionNotFoundError:
        raise EnvironmentMissing(f"{role}.model: {model} has no revision {revision}") from None
    except RepositoryNotFoundError:
        raise EnvironmentMissing(
            f"{role}.model: the Hub knows no model {model}, or it is private and the token may not see it",
            hint="check the spelling; for a private model: export HF_TOKEN=…",
        ) from None
    except Exception as error:  # the Hub's client brings its own HTTP library, and has changed it before
        note(f"could not ask the Hub about {model} ({type(error).__name__}); going on, it may be in the cache")
