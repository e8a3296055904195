"""`watch`: read a server's counters, name its faults, and do what its profile allows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from gemmaspec.deploy import live_k, stacks
from gemmaspec.deploy.stacks import Started, stack_folder
from gemmaspec.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.live.faults import Event, Faults
from gemmaspec.live.reaction import Policy, Reaction, reaction
from gemmaspec.live.sample import Sample
from gemmaspec.machine import nvidia
from gemmaspec.profile.load import load_profile
from gemmaspec.ready.metrics import LOOK_S, read_metrics
from gemmaspec.ready.probe import api_key_for

LOG: Final = "watch.log"
MOST_LOG: Final = 1024 * 1024
"""Bytes after which the log is rotated; one old log is kept."""
_HOOK_S: Final = 30
_GONE_AFTER: Final = 3
"""Consecutive failed readings before the server is called unreachable."""


@dataclass(frozen=True, kw_only=True)
class WatchLine:
    """One line of the log of `watch`. Times are in UTC."""

    at: str
    stack: str
    what: str
    """begins, ends, unreachable, answers, restarted, off, failed, hook."""
    fault: str | None = None
    reason: str = ""


class Restart(Protocol):
    """Restarts a stack, with or without speculation. Raises GemmaspecError."""

    def __call__(self, name: str, *, no_spec: bool) -> None: ...


@dataclass(kw_only=True)
class Watched:
    """One stack under watch."""

    started: Started
    policy: Policy
    hook: tuple[str, ...]
    faults: Faults = field(default_factory=Faults)
    restarts: list[float] = field(default_factory=list)
    """Monotonic times of the restarts by `watch`, in seconds."""
    failures: int = 0


def watched(names: Sequence[str]) -> list[Watched]:
    """Return the stacks of these names, or all that were started here, with what their profiles allow.

    Raises UsageError if a name was not started on this machine or its profile is no longer valid.
    """
    found = [stacks.find(name) for name in names] if names else list(stacks.started_stacks())
    return [_watched(one) for one in found]


def _watched(started: Started) -> Watched:
    wish = load_profile(started.profile, overrides=started.overrides, no_spec=started.no_spec).profile.watch
    return Watched(
        started=started,
        policy=Policy(
            on_dead_draft=wish.on_dead_draft,
            on_hang=wish.on_hang,
            most_restarts_per_hour=wish.most_restarts_per_hour,
        ),
        hook=tuple(wish.hook),
    )


def look(one: Watched, *, power_w: float | None, restart: Restart) -> Iterator[WatchLine]:
    """Read one stack once, act if its profile says so, and yield the events to log."""
    try:
        server = one.started.server
        sample = read_metrics(server, timeout_s=LOOK_S, api_key=api_key_for(server))
    except GemmaspecError as error:
        one.failures += 1
        if one.failures == _GONE_AFTER:
            yield _line(one, "unreachable", reason=error.message)
        return
    if one.failures >= _GONE_AFTER:
        yield _line(one, "answers")
    one.failures = 0
    yield from _judge(one, sample, power_w=power_w, restart=restart)


def _judge(one: Watched, sample: Sample, *, power_w: float | None, restart: Restart) -> Iterator[WatchLine]:
    for event in one.faults.add(sample, power_w=power_w):
        live = one.started.server.live_k is not None
        done = reaction(event, one.policy, restarts=one.restarts, now=time.monotonic(), live_k=live)
        reason = f"{event.reason}; {done.note}" if done.note else event.reason
        yield _line(one, "begins" if event.begins else "ends", fault=event.kind, reason=reason)
        yield from _hooked(one, event)
        yield from _act(one, done, restart)


def _act(one: Watched, done: Reaction, restart: Restart) -> Iterator[WatchLine]:
    if done.action == "report":
        return
    name = one.started.server.name
    if done.action == "off" and one.started.server.live_k is not None:
        yield _undrafted(one)
        return
    one.restarts.append(time.monotonic())
    try:
        restart(name, no_spec=done.action == "off")
    except GemmaspecError as error:
        yield _line(one, "failed", reason=error.message)
        return
    one.started, one.faults = stacks.find(name), Faults()
    yield _line(one, "off" if done.action == "off" else "restarted")


def _undrafted(one: Watched) -> WatchLine:
    """Switch speculation off in the running server; no request is lost."""
    name = one.started.server.name
    try:
        done = live_k.change(name, "off", lambda _: None)
    except GemmaspecError as error:
        return _line(one, "failed", reason=error.message)
    one.faults = Faults()
    return _line(one, "off", reason=f"k was {done.before} and is 0 now; to draft again: gemmaspec k {name} auto")


def _hooked(one: Watched, event: Event) -> Iterator[WatchLine]:
    """Run the profile's hook with the event as JSON. Its failures do not stop the watch."""
    if not one.hook:
        return
    document = json.dumps({"stack": one.started.server.name, **dataclasses.asdict(event)})
    try:
        done = subprocess.run(
            one.hook, input=document, text=True, capture_output=True, timeout=_HOOK_S, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = "timed out" if isinstance(error, subprocess.TimeoutExpired) else str(error.strerror)
        yield _line(one, "hook", reason=f"{one.hook[0]}: {said}")
        return
    if done.returncode:
        yield _line(one, "hook", reason=f"{one.hook[0]} ended with exit code {done.returncode}")


def _line(one: Watched, what: str, *, fault: str | None = None, reason: str = "") -> WatchLine:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return WatchLine(at=now, stack=one.started.server.name, what=what, fault=fault, reason=reason)


def power() -> float | None:
    """Return the power of all GPUs together in watts; None if unknown."""
    with contextlib.suppress(EnvironmentMissing):
        drawn = [one.power_w for one in nvidia.loads()]
        if drawn and all(one is not None for one in drawn):
            return sum(one for one in drawn if one is not None)
    return None


def log(line: WatchLine, *, redact: Callable[[str], str]) -> None:
    """Append a line to the stack's log, readable only by this user. A log that cannot be written is ignored."""
    file = stack_folder(line.stack) / LOG
    with contextlib.suppress(OSError):
        if file.exists() and file.stat().st_size > MOST_LOG:
            file.replace(file.with_suffix(".log.1"))
        opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        with os.fdopen(opened, "w", encoding="utf-8") as handle:
            handle.write(redact(json.dumps(dataclasses.asdict(line))) + "\n")


def unit(executable: Path, names: Sequence[str]) -> str:
    """Return a systemd user unit that keeps `watch` running."""
    command = " ".join(_quoted(word) for word in (str(executable), "watch", *names))
    return f"""\
[Unit]
Description=gemmaspec watch {" ".join(names)}
After=network.target

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=10
NoNewPrivileges=true
PrivateTmp=false

[Install]
WantedBy=default.target
"""


def _quoted(word: str) -> str:
    """Quote a word for ExecStart: systemd expands % and $ inside quotes too."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
