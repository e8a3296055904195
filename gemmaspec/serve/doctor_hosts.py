"""`doctor --fleet`: ask every machine of fleet.yaml at the same time, each within a bounded time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.check.doctor.hosts import HostReading, fleet_lines, parse_seen, rows
from gemmaspec.check.doctor.result import CheckResult, failed
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.files import state_dir
from gemmaspec.core.fleet.hosts import Host
from gemmaspec.core.profile.command import command_of
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.run.engine.docker import DockerEngine
from gemmaspec.run.engine.look import look
from gemmaspec.run.engine.server import Node
from gemmaspec.run.engine.together import together
from gemmaspec.run.kept.fleet import load_fleet, nodes_of
from gemmaspec.run.kept.models import models_of
from gemmaspec.run.models.hub_cache import is_commit
from gemmaspec.run.stack.paths import on_host

_BOUND_S: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class ExaminedHosts:
    """The result for a fleet."""

    file: str
    rows: tuple[CheckResult, ...]
    lines: tuple[str, ...]
    """fleet.yaml as the machines say it should be."""

    @property
    def ok(self) -> bool:
        """Whether nothing prevents a start."""
        return not any(row.state == "failed" for row in self.rows)


def doctor_hosts(profile: str | None, *, overrides: Sequence[str] = ()) -> ExaminedHosts:
    """Check every host of fleet.yaml, and with a profile its image, link, models and disk there.

    Raises UsageError without a fleet.yaml, ProfileError if it or the profile is invalid.
    """
    if profile:
        loaded = load_profile(profile, overrides=overrides)
    else:
        loaded = None
    fleet = load_fleet(loaded.file.parent if loaded else None)
    calls = {
        host.name: functools.partial(_reading, host, node, loaded)
        for host, node in zip(fleet.hosts, nodes_of(fleet.hosts), strict=True)
    }
    done = together(calls, seconds=_BOUND_S)
    readings = [_read(host, done[host.name]) for host in fleet.hosts]
    if loaded:
        hub = [model for model in models_of(loaded.profile) if not model.local]
    else:
        hub = []
    revisions = {model.model: model.revision if is_commit(model.revision) else None for model in hub}
    image = loaded.profile.image if loaded else None
    eager = bool(loaded and command_of(loaded.profile).switched("--enforce-eager"))
    return ExaminedHosts(
        file=fleet.file,
        rows=tuple(rows(readings, image=image, revisions=revisions, eager=eager)),
        lines=tuple(fleet_lines(readings)),
    )


def _read(host: Host, reading: HostReading | GemmaspecError) -> HostReading:
    if isinstance(reading, HostReading):
        return reading
    return HostReading(host=host, problem=failed(host.name, reading.message, reading.hint))


def _reading(host: Host, node: Node, loaded: Loaded | None) -> HostReading:
    engine = DockerEngine(node)
    try:
        facts = engine.facts(host.name)
        if loaded is None or not loaded.profile.image:
            return HostReading(host=host, facts=facts, unseen="name a profile to look inside, with its image")
        image = engine.image_facts(host.name, loaded.profile.image)
        if image is None:
            return HostReading(host=host, facts=facts)
        return _inside(engine, loaded, HostReading(host=host, facts=facts, image=image.id))
    finally:
        engine.close()


def _inside(engine: DockerEngine, loaded: Loaded, reading: HostReading) -> HostReading:
    """Add what only a container of that host can say; without its cache if the host does not have that folder."""
    profile = loaded.profile
    home = profile.caches.huggingface
    cache = on_host(home, state=state_dir()) if home else None
    models = [model.model for model in models_of(profile) if not model.local]
    why = ""
    for folder in (cache, None) if cache else (None,):
        try:
            text = look(
                engine.endpoint, profile.image or "", python=profile.container.python, models=models, cache=folder
            )
            return dataclasses.replace(reading, seen=parse_seen(text))
        except GemmaspecError as error:
            why = error.message
    return dataclasses.replace(reading, unseen=why)
