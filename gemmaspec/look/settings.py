"""What `doctor` ends with: the folders that gemmaspec uses and the variables that it reads, with their values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gemmaspec.core import data
from gemmaspec.core.files import state_dir
from gemmaspec.core.profile.find import own_folder, profile_folders
from gemmaspec.run.kept.measurements import measured_folder


@dataclass(frozen=True, kw_only=True)
class Location:
    """One folder or variable."""

    kind: Literal["folder", "variable"]
    name: str
    value: str | None
    """None for a variable that is not set; `set` for one whose value is a secret."""
    meaning: str


_SECRET: Final = ("HF_TOKEN", "VLLM_API_KEY")
_VARIABLES: Final = {
    "GEMMASPEC_STATE": "the state folder",
    "GEMMASPEC_PROFILES": "additional profile folders, searched before your own",
    "GEMMASPEC_PATCHES": "additional patch folders, which take precedence",
    "HF_HOME": "Hugging Face's folder: cache and token",
    "HF_TOKEN": "the token for gated models",
    "HF_ENDPOINT": "address of another Hugging Face Hub",
    "HF_HUB_OFFLINE": "do not use the Hub",
    "VLLM_API_KEY": "the API key of servers",
    "DOCKER_HOST": "the Docker daemon's address",
    "DOCKER_CONTEXT": "the Docker context, if DOCKER_HOST is not set",
    "HTTPS_PROXY": "the proxy for downloads",
    "NO_PROXY": "hosts to reach without the proxy",
    "NO_COLOR": "disable colours",
    "COLUMNS": "the width of the output",
}
"""Every variable that changes what gemmaspec does; those of the server are listed by a profile's pass_env."""


def settings() -> Iterator[Location]:
    """Yield every folder, then every variable."""
    for name, path, meaning in _folders():
        yield Location(kind="folder", name=name, value=str(path), meaning=meaning)
    for name, meaning in _VARIABLES.items():
        value = os.environ.get(name) or os.environ.get(name.lower() if name.endswith("_PROXY") else name)
        shown = "set" if value and name in _SECRET else value
        yield Location(kind="variable", name=name, value=shown or None, meaning=meaning)


def _folders() -> Iterator[tuple[str, Path, str]]:
    from huggingface_hub import constants

    state = state_dir()
    yield "state", state, "the state folder, which contains the next folders"
    yield "stacks", state / "stacks", "started stacks: files, records, logs"
    yield "known good", state / "known-good", "stacks to roll back to"
    yield "runtimes", state / "runtimes", "Python environments of the process engine"
    yield "own profiles", own_folder(), "your profiles, and the locks of shipped ones"
    yield "measured", measured_folder(), "what `bench --save-measured` kept for predict"
    for index, folder in enumerate(path for path in profile_folders() if path not in (own_folder(), data.PROFILES)):
        yield f"more profiles {index + 1}", folder, "from GEMMASPEC_PROFILES"
    yield "shipped profiles", data.PROFILES, "do not edit; extend one with: gemmaspec profile new"
    for folder in data.patch_folders()[1:]:
        yield "more patches", folder, "from GEMMASPEC_PATCHES"
    yield "shipped patches", data.PATCHES, "do not edit"
    yield "models", Path(constants.HF_HUB_CACHE), "the Hugging Face cache, unless a profile names another one"
