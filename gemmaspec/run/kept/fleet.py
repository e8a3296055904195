"""Which machines a server spans, and how they are reached: from `nodes`, fleet.yaml and --hosts."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path

from gemmaspec.core.errors import UsageError
from gemmaspec.core.files import read_regular
from gemmaspec.core.fleet.hosts import EXAMPLE, Fleet, Host, choose, parse_fleet
from gemmaspec.core.profile.find import FLEET, own_folder, profile_folders
from gemmaspec.core.profile.load import Loaded
from gemmaspec.run.engine.server import Node


def hosts_of(loaded: Loaded, names: Sequence[str]) -> tuple[Host, ...]:
    """Return the hosts of a profile's server by rank; none for a profile of one machine.

    `names` are those of --hosts; none stand for the whole fleet. Raise UsageError if the profile does not span
    machines or the hosts do not fit it, ProfileError for an invalid fleet.yaml.
    """
    profile = loaded.profile
    if profile.nodes > 1:
        fleet = load_fleet(loaded.file.parent)
        return choose(fleet, names or None, needed=profile.nodes, profile=loaded.typed)
    if names:
        raise UsageError(
            f"--hosts is for a server on several machines, and {profile.name} runs on one (nodes: 1)",
            hint=f"gemmaspec up {loaded.typed} --set nodes={max(2, len(names))} --hosts {','.join(names)}",
        )
    return ()


def load_fleet(beside: Path | None = None) -> Fleet:
    """Return the fleet of the nearest fleet.yaml: in the profile's folder, else in the folders of profiles.

    Raise UsageError if there is none, ProfileError if it is invalid.
    """
    folders = [*([beside] if beside else []), *profile_folders()]
    for folder in folders:
        file = folder / FLEET
        if (content := read_regular(file, follow=True)) is not None:
            return parse_fleet(content, file=str(file))
    raise UsageError(
        f"there is no {FLEET}, which lists the machines that a server can span",
        hint=f"write {own_folder() / FLEET}:\nhosts:\n  NAME: {EXAMPLE}",
    )


def nodes_of(hosts: Sequence[Host]) -> tuple[Node, ...]:
    """Return how the daemons of these hosts are reached."""
    return tuple(Node(host=host.name, docker=host.docker) for host in hosts)


def reached_at(loaded: Loaded, head: Host) -> str | None:
    """Return the name or address by which this machine reaches rank 0; None if it is this machine.

    Raise UsageError if rank 0 is on another machine and listens only there, EnvironmentMissing for an unknown context.
    """
    from gemmaspec.run.engine import endpoint

    machine = endpoint.of_host(head.name, head.docker).machine
    bind = loaded.profile.serve.bind
    if machine is None:
        return None
    if bind in ("127.0.0.1", "::1", "localhost"):
        raise UsageError(
            f"{loaded.place('serve', 'bind')}: serve.bind: is {bind}, but rank 0 runs on {head.name}, another machine, "
            "and readiness takes an answer from it",
            hint="set serve.bind to its address or 0.0.0.0, and pass_env: [VLLM_API_KEY]; "
            "or run gemmaspec on that machine, with docker: default",
        )
    with contextlib.suppress(OSError):  # the name may be one of the SSH configuration only
        socket.getaddrinfo(machine, None)
        return machine
    return head.address
