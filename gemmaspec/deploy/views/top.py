"""`top`: live readings of the running stacks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psutil

from gemmaspec.deploy.kept import stacks
from gemmaspec.deploy.kept.groups import each_of
from gemmaspec.deploy.kept.stacks import Started
from gemmaspec.deploy.kept.verdicts import hang_of, last_verdicts
from gemmaspec.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.live.board import Board, GpuLoad, View
from gemmaspec.live.history import NOW_S, History
from gemmaspec.machine import nvidia
from gemmaspec.measure.load import AT_ONCE, together
from gemmaspec.ready.first_request import api_key_for
from gemmaspec.ready.metrics import LOOK_S, read_metrics


@dataclass(kw_only=True)
class _Watched:
    """One stack, with what is kept between two readings."""

    started: Started
    history: History = field(default_factory=History)
    report: dict[str, Any] | None = None


class Top:
    """Reads stacks repeatedly and keeps ten minutes of their counters."""

    def __init__(self, names: Sequence[str]) -> None:
        """Watch the stacks of these names, or all that were started here; a profile's name means all its replicas.

        Raises UsageError if a name was not started on this machine.
        """
        found = [stacks.find(name) for name in each_of(names)] if names else stacks.started_stacks()
        self._watched = [_Watched(started=one) for one in found]
        self._gpus = _gpu_names()

    def look(self) -> Board:
        """Read every stack once. The column of a stack that does not answer shows why."""
        return Board(
            at=time.time(),
            views=tuple(together([partial(_view, one) for one in self._watched], at_once=AT_ONCE)),
            gpus=self._loads(),
            memory_available=psutil.virtual_memory().available,
        )

    def _loads(self) -> tuple[GpuLoad, ...]:
        if not self._gpus:
            return ()
        try:
            loads = nvidia.loads()
        except EnvironmentMissing:
            return tuple(GpuLoad(name=name) for name in self._gpus)
        return tuple(
            GpuLoad(
                name=name,
                clock_mhz=load.clock_mhz,
                power_w=load.power_w,
                temperature_c=load.temperature_c,
                memory_used=load.memory_used,
            )
            for name, load in zip(self._gpus, loads, strict=False)
        )


def _gpu_names() -> tuple[str, ...]:
    try:
        return tuple(one.name for one in nvidia.gpus())
    except EnvironmentMissing:
        return ()


def _view(watched: _Watched) -> View:
    server = watched.started.server
    try:
        sample = read_metrics(server, timeout_s=LOOK_S, api_key=api_key_for(server))
    except GemmaspecError as error:
        return View(
            name=server.name, engine=watched.started.engine, address=server.base_url, problem=_why(watched, error)
        )
    watched.history.add(sample)
    if watched.report is None:
        watched.report = _report(watched.started)
    return View(
        name=server.name,
        engine=watched.started.engine,
        address=server.base_url,
        vllm=_version(watched.report),
        patches=_patches(watched.report),
        hang=hang_of(watched.started, last_verdicts(watched.started)),
        sample=sample,
        now=watched.history.over(NOW_S),
        lately=watched.history.over(float("inf")),
    )


def _why(watched: _Watched, error: GemmaspecError) -> str:
    """Return why a stack does not answer: the engine's state, or the request's failure."""
    try:
        state = stacks.engine_of(watched.started).state(watched.started.server)
    except GemmaspecError as unknown:
        return unknown.message
    return error.message if state.status == "running" else state.status


def _report(started: Started) -> dict[str, Any] | None:
    try:
        return stacks.engine_of(started).report(started.server)
    except GemmaspecError:
        return None


def _version(report: dict[str, Any] | None) -> str | None:
    found = report.get("vllm") if report else None
    return str(found["version"])[:40] if isinstance(found, dict) and "version" in found else None


def _patches(report: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the patches that the launcher applied or found applied."""
    found = report.get("patches") if report else None
    rows = found if isinstance(found, list) else []
    return tuple(str(row["patch"])[:80] for row in rows if _is_in(row))


def _is_in(row: object) -> bool:
    return isinstance(row, dict) and "patch" in row and row.get("state") in ("applies", "drifted", "applied")
