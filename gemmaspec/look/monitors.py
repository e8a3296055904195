"""`connect`: files by which programs watch or swap the servers of this machine: Prometheus, Grafana, llama-swap."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import yaml

from gemmaspec.core.data import TEMPLATES
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.run.kept import groups, stacks
from gemmaspec.run.kept.groups import each_of

RULES: Final = "gemmaspec-rules.yml"
_START_S: Final = 1800
"""How long llama-swap waits for a server; its own default, 120 seconds, is too short for vLLM."""
_IDLE_S: Final = 1800
"""After how many seconds without a request llama-swap stops a server."""


def grafana(names: Sequence[str]) -> str:
    """Return the dashboard with the speculation panels that vLLM's own lack; it is of all servers."""
    if names:
        raise UsageError("the dashboard is for all servers: it has a list of models", hint="gemmaspec connect grafana")
    return _template("grafana.json")


def prometheus(names: Sequence[str]) -> str:
    """Return a configuration that scrapes these stacks, or all that run, or that nobody stopped, and loads the rules.

    The name of a profile with replicas means all of them. It contains no key: for a server with one, add
    `authorization: {credentials_file: …}` to its job. Raises UsageError if a name was not started on this machine.
    """
    started = [stacks.find(name) for name in each_of(names)]
    if not names:  # all but those that gemmaspec itself stopped: an alert for one of them would tell nothing
        started = [run for run in stacks.started_stacks() if not (run.was_undone or run.is_unwanted)]
    targets = [
        {"targets": [urlsplit(run.server.base_url).netloc], "labels": {"stack": run.server.name}} for run in started
    ]
    jobs: list[dict[str, object]] = [{"job_name": "gemmaspec", "static_configs": targets}]
    if routed := _routers(names):
        jobs.append({"job_name": "gemmaspec-router", "static_configs": routed})
    return _yaml(
        {
            "global": {"scrape_interval": "5s", "evaluation_interval": "15s"},
            "rule_files": [RULES],
            "scrape_configs": jobs,
        }
    )


def _routers(names: Sequence[str]) -> list[dict[str, object]]:
    """Return the metrics of the routers of these profiles, or of all that nobody stopped."""
    found = [group for name in names or groups.names() if (group := groups.read(name))]
    wanted = [group for group in found if names or not group.stopped]
    return [
        {"targets": [f"127.0.0.1:{group.router.metrics_port}"], "labels": {"router": group.name}} for group in wanted
    ]


def prometheus_rules(names: Sequence[str]) -> str:
    """Return the alert rules; they are for all servers."""
    if names:
        raise UsageError("the rules are for all servers", hint="gemmaspec connect prometheus-rules")
    return _template(RULES)


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8").rstrip()


def _yaml(value: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=120).rstrip()


def llama_swap(names: Sequence[str]) -> str:
    """Return llama-swap's configuration for profiles, or for all that were started here.

    llama-swap expects a command that runs as long as the server does, so the log is followed after `up`.
    Raises UsageError for an unknown profile, or for none.
    """
    profiles = [load_profile(name) for name in names or [stack.profile for stack in stacks.started_stacks()]]
    if not profiles:
        raise UsageError("no profile was named, and none was started here", hint="gemmaspec connect llama-swap NAME")
    return _yaml({"healthCheckTimeout": _START_S, "models": {each.profile.name: _swapped(each) for each in profiles}})


def _swapped(loaded: Loaded) -> dict[str, object]:
    profile, typed = loaded.profile, loaded.typed
    # exec: llama-swap signals the process that it started, and waits for its end
    run = f"gemmaspec up {typed} && exec gemmaspec logs -f {profile.name}"
    host = "127.0.0.1" if profile.serve.bind in ("0.0.0.0", "::") else profile.serve.bind  # noqa: S104 - compared
    model = profile.serve.served_model_name or profile.target.model
    together = max(64, profile.serve.max_num_seqs or 0)
    return {
        "cmd": shlex.join(["sh", "-c", run]),
        "cmdStop": f"gemmaspec down {profile.name}",
        "proxy": f"http://{host}:{profile.serve.port}",
        "checkEndpoint": "/health",
        "useModelName": model,
        "ttl": _IDLE_S,
        "unloadTimeout": profile.container.stop_grace_seconds + 60,
        "concurrencyLimit": together,
    }


@dataclass(frozen=True, kw_only=True)
class Monitor:
    """A program that works with several servers, and the file that it reads."""

    title: str
    where: str
    """Where the text belongs."""
    text: Callable[[Sequence[str]], str]
    """From names of servers, or of profiles for llama-swap; none for all that were started here."""


MONITORS: Final[Mapping[str, Monitor]] = {
    "llama-swap": Monitor(title="llama-swap", where="its config.yaml", text=llama_swap),
    "prometheus": Monitor(title="Prometheus", where="prometheus.yml", text=prometheus),
    "prometheus-rules": Monitor(title="Prometheus' alerts", where=f"{RULES} next to it", text=prometheus_rules),
    "grafana": Monitor(title="Grafana", where="Dashboards, New, Import", text=grafana),
}
