"""Where a profile's lock lies, and what it says."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gemmaspec import data
from gemmaspec.errors import GemmaspecError, ProfileError
from gemmaspec.profile.find import own_folder
from gemmaspec.profile.load import Loaded
from gemmaspec.profile.runs import vllm_of

if TYPE_CHECKING:
    from gemmaspec.lock.model import Lock

SUFFIX: Final = ".lock"


def release_of(loaded: Loaded) -> str | None:
    """The vLLM that a profile will run: as it says itself, else as its lock has it; None for neither."""
    return vllm_of(loaded.profile) or _locked_release(loaded)


def _locked_release(loaded: Loaded) -> str | None:
    if not lock_file(loaded).is_file():
        return None
    lock = None
    with contextlib.suppress(GemmaspecError):  # whoever needs the lock itself says what is wrong with it
        lock = read_lock(loaded)
    if lock is None:
        return None
    runtime, image = loaded.profile.runtime, loaded.profile.image
    same = lock.image.name == image if lock.image else runtime.python is not None
    return lock.versions.vllm if same else None


def lock_file(loaded: Loaded) -> Path:
    """Where a profile's lock lies: beside its file; for a shipped profile in the user's own profile folder."""
    shipped = loaded.file.is_relative_to(data.PROFILES)
    folder = own_folder() if shipped else loaded.file.parent
    return folder / f"{loaded.file.stem}{SUFFIX}"


def read_lock(loaded: Loaded) -> Lock | None:
    """The lock of a profile; None when it has none. Raises ProfileError for a file that is no lock, or another's."""
    from gemmaspec.lock.text import MAX_CHARACTERS, parse_lock

    file = lock_file(loaded)
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for ever
            raise ProfileError(f"{file}: is not a file", hint=f"ls -l {file}")
        with file.open(encoding="utf-8") as opened:
            text = opened.read(MAX_CHARACTERS + 1)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{file}: cannot be read ({type(error).__name__})", hint=f"ls -l {file}") from None
    lock = parse_lock(text, file=str(file))
    if lock.profile != loaded.profile.name:
        raise ProfileError(f"{file}: is the lock of {lock.profile}, not of {loaded.profile.name}")
    return lock
