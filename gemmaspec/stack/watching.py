"""The files of the watch in a container: the modules that it runs, and its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from gemmaspec import data
from gemmaspec.profile.model import Profile
from gemmaspec.stack.paths import container_paths
from gemmaspec.stack.serve import served_model

FOLDER: Final = "watch"
"""Of the stack's folder; mounted at /watch."""
IN_CONTAINER: Final = "/watch"
SERVICE: Final = "watch"
SHARED: Final = "/run/gemmaspec-watch"
"""What the watch writes, in memory: what it knows."""
VERDICT: Final = f"{SHARED}/watch.json"
WEBHOOK: Final = "GEMMASPEC_WEBHOOK"
USER: Final = 65534
"""uid and gid of the watch: nobody, whoever the server is."""
SETTINGS: Final = f"{FOLDER}/settings.json"
MODULES: Final = {f"{FOLDER}/{name}": file for name, file in data.SIDECAR.items()}
WATCH_FILES: Final = (SETTINGS, *MODULES)


def watch_files(profile: Profile) -> Mapping[str, str]:
    """Return the files of the watch of a profile, by name."""
    settings = {
        "schema": 1,
        "stack": profile.name,
        "address": f"http://vllm:{profile.serve.port}",
        "model": served_model(profile, container_paths(profile)),
        "watch": profile.watch.model_dump(exclude={"container", "hook"}),
    }
    modules = {name: file.read_text(encoding="utf-8") for name, file in MODULES.items()}
    return {**modules, SETTINGS: json.dumps(settings, indent=2, ensure_ascii=False) + "\n"}
