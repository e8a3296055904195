"""`export`: files by which Prometheus, llama-swap and Open WebUI use the stacks of this machine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml

from gemmaspec.deploy.kept import stacks
from gemmaspec.deploy.kept.groups import each_of
from gemmaspec.deploy.kept.stacks import Started
from gemmaspec.deploy.views.connect import endpoint
from gemmaspec.errors import UsageError
from gemmaspec.files import write_whole
from gemmaspec.live.prometheus import ScrapeTarget, configuration, rules
from gemmaspec.profile.load import Loaded, load_profile

RULES: Final = "gemmaspec-rules.yml"
CONFIGURATION: Final = "prometheus.yml"
_START_S: Final = 1800
"""How long llama-swap waits for a server; its own default, 120 seconds, is too short for vLLM."""
_IDLE_S: Final = 1800
"""After how many seconds without a request llama-swap stops a server."""


def prometheus_files(names: Sequence[str]) -> Mapping[str, str]:
    """Return Prometheus' configuration and rule file for these stacks, or for all that run, or that nobody stopped.

    The name of a profile with replicas means all of them.
    Raises UsageError if a name was not started on this machine.
    """
    started = [stacks.find(name) for name in each_of(names)] if names else _not_stopped()
    targets = [ScrapeTarget(name=one.server.name, address=urlsplit(one.server.base_url).netloc) for one in started]
    return {
        CONFIGURATION: _yaml(configuration(targets, rule_file=RULES)),
        RULES: _yaml(rules()),
    }


def _not_stopped() -> list[Started]:
    """Return all stacks but those that gemmaspec itself stopped: an alert for one of them would tell nothing."""
    return [one for one in stacks.started_stacks() if not one.was_undone and one.outcome != "stopped"]


def write_new(files: Mapping[str, str], folder: Path, *, force: bool) -> list[Path]:
    """Write files into a folder and return their paths. Raises UsageError if one is there, unless `force`."""
    targets = {folder / name: text for name, text in files.items()}
    taken = [target for target in targets if target.exists() and not force]
    if taken:
        raise UsageError(f"{taken[0]} already exists", hint=f"gemmaspec export prometheus --out {folder} --force")
    folder.mkdir(parents=True, exist_ok=True)
    for target, text in targets.items():
        write_whole(target, text)
    return list(targets)


def _yaml(value: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=120)


def llama_swap(names: Sequence[str]) -> str:
    """Return llama-swap's configuration for profiles, or for all that were started here.

    llama-swap expects a command that runs as long as the server does, so the log is followed after `up`.
    Raises UsageError for an unknown profile, or for none.
    """
    profiles = [load_profile(name) for name in names or [one.profile for one in stacks.started_stacks()]]
    if not profiles:
        raise UsageError("no profile was named, and none was started here", hint="gemmaspec export llama-swap NAME")
    return _yaml({"healthCheckTimeout": _START_S, "models": {one.profile.name: _swapped(one) for one in profiles}})


def _swapped(loaded: Loaded) -> dict[str, object]:
    profile, typed = loaded.profile, loaded.typed
    host = "127.0.0.1" if profile.serve.bind in ("0.0.0.0", "::") else profile.serve.bind  # noqa: S104 - compared
    return {
        "cmd": shlex.join(["sh", "-c", f"gemmaspec up {typed} && exec gemmaspec logs -f {profile.name}"]),
        "cmdStop": f"gemmaspec down {profile.name}",
        "proxy": f"http://{host}:{profile.serve.port}",
        "checkEndpoint": "/health",
        "useModelName": profile.serve.served_model_name or profile.target.model,
        "ttl": _IDLE_S,
        "unloadTimeout": profile.container.stop_grace_seconds + 60,
        "concurrencyLimit": max(64, profile.serve.max_num_seqs or 0),
    }


def open_webui(name: str | None) -> str:
    """Return a Compose file with Open WebUI for a started profile. Raises UsageError as connect.endpoint."""
    to = endpoint(name)
    service = {
        "image": "ghcr.io/open-webui/open-webui:main",
        "network_mode": "host",
        "environment": {
            "HOST": "127.0.0.1",
            "PORT": "3000",
            "ENABLE_OLLAMA_API": "False",
            "OPENAI_API_BASE_URL": to.openai,
            "OPENAI_API_KEY": "${VLLM_API_KEY}" if to.needs_key else "none",
        },
        "volumes": ["open-webui:/app/backend/data"],
        "restart": "unless-stopped",
    }
    return _yaml({"name": f"open-webui-{to.name}", "services": {"open-webui": service}, "volumes": {"open-webui": {}}})
