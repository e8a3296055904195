"""`export`: what Grafana and Prometheus need to monitor the stacks of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml

from gemmaspec.deploy import stacks
from gemmaspec.deploy.groups import each_of
from gemmaspec.deploy.stacks import Started
from gemmaspec.errors import UsageError
from gemmaspec.files import write_whole
from gemmaspec.live.prometheus import ScrapeTarget, configuration, rules

RULES: Final = "gemmaspec-rules.yml"
CONFIGURATION: Final = "prometheus.yml"


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
