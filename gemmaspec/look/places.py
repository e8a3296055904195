"""Which GPUs and cores servers use, so that only restarts that share none run side by side."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.profile.load import load_profile, replica_of
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.profile.replica import cores_in
from gemmaspec.run.kept.stacks import Started

ALL: Final = "all of this machine"


def used_by(started: Started) -> frozenset[str]:
    """Return the GPUs, cores or hosts that a server computes on; ALL where its profile does not say which."""
    if started.server.nodes:
        return frozenset(f"host {node.host}" for node in started.server.nodes)
    try:
        loaded = load_profile(started.profile, overrides=started.overrides, no_spec=started.no_spec)
        if started.replica is not None:
            loaded = replica_of(loaded, started.replica)
    except GemmaspecError:  # the profile is gone, or has fewer replicas now
        return frozenset({ALL})
    return used_by_profile(loaded.profile)


def used_by_profile(profile: Profile) -> frozenset[str]:
    """Return the GPUs or cores that a profile of one server names; ALL if it names none."""
    if profile.devices:
        return frozenset(f"GPU {device}" for device in profile.devices)
    if profile.cpus and not MACHINES[profile.machine].gpus:
        return frozenset(f"core {core}" for entry in profile.cpus for core in cores_in(entry))
    return frozenset({ALL})


class Places:
    """Which GPUs and cores restarts use now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: list[frozenset[str]] = []

    @contextlib.contextmanager
    def taken(self, wanted: frozenset[str]) -> Iterator[None]:
        """Wait until nobody uses any of these, and hold them while the body runs."""
        with self._changed:
            self._changed.wait_for(lambda: not any(_meet(wanted, busy) for busy in self._busy))
            self._busy.append(wanted)
        try:
            yield
        finally:
            with self._changed:
                self._busy.remove(wanted)
                self._changed.notify_all()


def _meet(one: frozenset[str], other: frozenset[str]) -> bool:
    return ALL in one or ALL in other or bool(one & other)
