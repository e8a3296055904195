"""`up --dry-run`: what `up` would do."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gemmaspec import data
from gemmaspec.deploy.kept.attention import graphs_ahead
from gemmaspec.deploy.start import lock
from gemmaspec.deploy.start.ahead import Ahead, ahead
from gemmaspec.deploy.start.decide import Start, UpRequest, decide
from gemmaspec.deploy.start.observe import load_request, observe
from gemmaspec.engine.server import EngineName
from gemmaspec.patching.patch import Shelf
from gemmaspec.stack.speed import speed_choice


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What `up` would do, for people."""

    engine: EngineName
    why: str
    joins: bool
    """It already runs unchanged, so only the probe would be sent."""
    stops: str | None
    """What runs now and would be stopped first."""
    ahead: Ahead | None
    """Image, runtime and models that are not on this machine, and how long it takes; None if it runs already."""
    files: tuple[str, ...]
    command: str
    environment: tuple[str, ...]
    """Names of variables, never their values."""
    hosts: tuple[str, ...]
    """The machines of a server that spans several, by rank."""
    offline: str
    """Whether the server is told not to use the Hugging Face Hub."""
    expects: str
    graphs: tuple[str, ...] = ()
    """The CUDA graphs that it would lack, and what brings them back."""
    speed_patches: Sequence[str] = ()
    """Patches for speed that it would try; the launcher leaves out those that do not fit exactly."""
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Other patches for speed, and why it would not try them."""


def dry_run(request: UpRequest, note: Callable[[str], None]) -> DryRun:
    """Return what `up` would do. Changes nothing; asks the engine, and for the sizes of what is missing.

    Raises DifferencesFound where `up` would refuse what its lock does not pin.
    """
    observed, _ = observe(request, load_request(request), note)
    start = decide(request, observed)
    if start.locked_runtime and not start.runtime:  # one that is still to be built gets what the lock pins
        lock.check_runtime(start.locked_runtime)
    profile = observed.loaded.profile
    speed = speed_choice(profile, Shelf(data.patch_folders()))
    return DryRun(
        engine=start.engine,
        why=start.why,
        joins=start.joins,
        stops=_stops(start),
        ahead=None if start.joins else ahead(start),
        files=tuple(str(start.server.folder / name) for name in sorted(start.files)),
        command=shlex.join(start.command),
        environment=start.environment,
        hosts=start.started.options.hosts,
        offline=start.offline,
        expects=start.expects,
        graphs=graphs_ahead(profile, elsewhere=bool(start.started.options.hosts)),
        speed_patches=tuple(speed.taken),
        left_out=speed.left_out,
    )


def _stops(start: Start) -> str | None:
    if not start.replaces:
        return None
    before = start.replaces.started
    return f"{before.server.name} ({before.engine}, port {before.server.port})"
