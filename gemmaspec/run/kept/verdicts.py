"""What `smoke` and `watch` found last, kept in the stack's folder for `status` and `wait`."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gemmaspec.core import records
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.live.faults import FaultKind
from gemmaspec.core.live.verdict import SmokeVerdict
from gemmaspec.run.engine.server import Engine
from gemmaspec.run.kept.stacks import Started, stack_folder
from gemmaspec.run.stack.serve import SERVICE, VERDICT

SMOKE: Final = "smoke.json"
WATCH: Final = "watch.json"
_SILENT_S: Final = 30.0
"""After so many seconds, and five of its intervals, without a look `watch` is taken to have ended."""
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Watching:
    """What `watch` knew of a stack when it looked last."""

    at: float
    """Seconds since 1970 of its last look."""
    active: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Faults that have begun and not ended, and when they began, in seconds since 1970."""
    restarts: tuple[float, ...] = ()
    """Restarts that `watch` has done in the last hour, in seconds since 1970."""
    last: str = ""
    """Its last action, and why it was done or left undone."""
    unknown: tuple[str, ...] = ()
    """Rules that it cannot judge here, each with what is missing."""
    interval: float = 1.0
    """Seconds between two looks."""
    starved: str = ""
    """That memory ran out in the moment in which the server went, as `watch` saw it."""
    attested: str = ""
    """Whether the patched functions run, such as "attested: 4 functions in 3 processes"; empty without patches."""

    @property
    def looks(self) -> bool:
        """Whether `watch` still looks."""
        return abs(time.time() - self.at) <= max(_SILENT_S, 5 * self.interval)

    @property
    def hangs_since(self) -> float | None:
        """When the server began to hang, in seconds since 1970; None if it does not, or `watch` has ended."""
        if self.looks:
            return self.active.get(str(FaultKind.HANGS))
        return None


@dataclass(frozen=True, kw_only=True)
class Last:
    """The last verdicts of a stack."""

    smoke: SmokeVerdict | None = None
    smoke_is_of_this_start: bool = False
    """Whether the server has not been started anew since."""
    watch: Watching | None = None
    beside: Watching | None = None
    """What the watch in a container next to the server knows; None where there is none, or its verdict is missing."""
    beside_log: tuple[str, ...] = ()
    """The command that shows the log of that container, where it should run and has no verdict."""
    beside_again: str = ""
    """The command that starts that container again."""


def last_verdicts(started: Started, engine: Engine | None = None) -> Last:
    """Return what is kept; what cannot be read counts as missing. `engine` is that of a server that was not stopped."""
    smoke = last_smoke(started.server.name)
    beside: Watching | None = None
    beside_log: tuple[str, ...] = ()
    if engine and started.server.watched:
        beside = _beside(started, engine)
        if not beside:
            beside_log = ("docker", "compose", "-p", started.server.project, "logs", SERVICE)
    return Last(
        smoke=smoke,
        smoke_is_of_this_start=bool(smoke and smoke.since is not None and smoke.since == started.since),
        watch=last_watch(started.server.name),
        beside=beside,
        beside_log=beside_log,
        beside_again=started.options.command,
    )


def hang_of(started: Started, last: Last) -> str:
    """Return since when this start of the server hangs, as a `watch` that still looks has found; '' if none has."""
    hangs = [watch.hangs_since for watch in (last.watch, last.beside) if watch]
    since = min((at for at in hangs if at is not None and at >= (started.since or 0)), default=None)
    if since is None:
        return ""
    if time.time() - since < _DAY_S:
        form = "%H:%M:%S"
    else:
        form = "%Y-%m-%d %H:%M:%S"
    return f"hangs since {time.strftime(form, time.localtime(since))}, as watch has found"


def _beside(started: Started, engine: Engine) -> Watching | None:
    try:
        return records.parse(Watching, engine.read(started.server, VERDICT, service=SERVICE))
    except GemmaspecError:
        return None


def keep_smoke(name: str, verdict: SmokeVerdict) -> None:
    """Keep a verdict. Raises EnvironmentMissing when it cannot be written; the last one is then still there."""
    records.write(stack_folder(name) / SMOKE, verdict)


def last_smoke(name: str) -> SmokeVerdict | None:
    """Return the last verdict of `smoke`; None where there is none, or its file cannot be read."""
    return records.kept(SmokeVerdict, stack_folder(name) / SMOKE)


def keep_watch(name: str, watching: Watching) -> None:
    """Keep what `watch` knows. Raises EnvironmentMissing when it cannot be written."""
    records.write(stack_folder(name) / WATCH, watching)


def keep_if_possible(name: str, watching: Callable[[], Watching]) -> str:
    """Keep what `watch` knows, for `status`. Return nothing to log: a full disk would fill the log too."""
    with contextlib.suppress(GemmaspecError):
        keep_watch(name, watching())
    return ""


def last_watch(name: str) -> Watching | None:
    """Return what `watch` knew last; None where there is nothing, or its file cannot be read."""
    return records.kept(Watching, stack_folder(name) / WATCH)
