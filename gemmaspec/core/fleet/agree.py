"""What the hosts of one server must agree on before it starts: daemons, architecture, clock, image. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.sentences import duration

MOST_APART_S: Final = 30.0
"""Clocks further apart than this make logs of two hosts incomparable, and mean that one of them is not set."""


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """One host as its daemon describes it."""

    host: str
    docker: str
    """The daemon's version."""
    daemon: str
    """The daemon's own ID and its machine's name."""
    architecture: str
    ahead_s: float
    """By how many seconds its clock is ahead of this machine's; negative if it is behind."""


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """The image that a name refers to on one host."""

    host: str
    id: str
    digests: frozenset[str] = frozenset()
    """sha256:… of its manifest in each repository that the host has it from."""


def hosts_disagree(facts: Sequence[HostFacts]) -> GemmaspecError | None:
    """Return the error for hosts that cannot carry one server; None if they agree."""
    first = facts[0]
    seen: dict[str, str] = {}
    for host in facts:
        if host.daemon and host.daemon in seen:
            return EnvironmentMissing(
                f"{seen[host.daemon]} and {host.host} are one docker daemon ({host.daemon}), "
                "but each rank needs a machine of its own",
                hint="set docker: of one of them in fleet.yaml to another daemon",
            )
        seen[host.daemon] = host.host
    for host in facts:
        if host.architecture != first.architecture:
            return EnvironmentMissing(
                f"the hosts have different architectures: {first.host} is {first.architecture}, "
                f"{host.host} is {host.architecture}; one server needs equal machines",
                hint="gemmaspec up NAME --hosts …    # name equal machines of fleet.yaml",
            )
    slow, fast = min(facts, key=lambda host: host.ahead_s), max(facts, key=lambda host: host.ahead_s)
    apart = fast.ahead_s - slow.ahead_s
    if apart > MOST_APART_S:
        return EnvironmentMissing(
            f"the clocks of {slow.host} and {fast.host} are {duration(apart)} apart ({fast.host} is ahead)",
            hint="timedatectl set-ntp true    # on both hosts",
        )
    return None


def images_disagree(name: str, images: Sequence[ImageFacts]) -> GemmaspecError | None:
    """Return the error for a name that means another image on another host; None if all are the same image."""
    first = images[0]
    for image in images[1:]:
        if image.id != first.id and not (image.digests & first.digests):
            return EnvironmentMissing(
                f"the image {name} is not the same on all hosts: {first.host} has {first.id[:19]}…, "
                f"{image.host} has {image.id[:19]}…",
                hint="gemmaspec lock PROFILE    # then up --locked, which names the image by its digest",
            )
    return None
