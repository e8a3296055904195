"""Replicas that serve and that the router leaves out, as a killed or interrupted change leaves them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.run.kept import groups, stacks
from gemmaspec.run.kept.groups import Group
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.ready.first_request import healthy


def serving(group: Group) -> bool:
    """Return whether a replica runs that was ready, whatever the router says."""
    return any(started.outcome == "ready" for started in _running(group))


def left_out(group: Group) -> Sequence[str]:
    """Return the replicas that serve, and to which the router sends no request.

    One that is being stopped is none of them, nor one that starts and does not answer yet. Raises RouterError if the
    router does not answer.
    """
    out = []
    for started in _running(group):
        waits = started.outcome == "starting" and not healthy(started.server)
        if not waits and not _gets_requests(group, started):
            out.append(started.server.name)
    return out


def put_back(group: Group) -> Sequence[str]:
    """Have the router send requests to every replica that is ready and left out; return those that it does now.

    A replica whose start nobody has seen to its end stays out: whether it drafts is not known. Nothing is raised: this
    is what is done last, after Ctrl-C or in a watch.
    """
    added = []
    for started in _running(group):
        with contextlib.suppress(GemmaspecError):
            if started.outcome == "ready" and not _gets_requests(group, started):
                group.router.routing.add(groups.place_of(started.server, started.replica or 0))
                added.append(started.server.name)
    return added


def _running(group: Group) -> list[Started]:
    """Return the replicas that run and that nobody has stopped."""
    found = []
    for name in dict.fromkeys((*group.members, *stacks.replicas_of(group.name))):
        with contextlib.suppress(GemmaspecError):
            started = stacks.find(name)
            wanted = started.replica is not None and started.outcome in ("ready", "starting")
            if wanted and stacks.look(started).status == "running":
                found.append(started)
    return found


def _gets_requests(group: Group, started: Started) -> bool:
    place = groups.place_of(started.server, started.replica or 0)
    return group.router.routing.look(place).inside
