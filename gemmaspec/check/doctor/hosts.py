"""Rows of `doctor --fleet`: what each machine of fleet.yaml says, and whether they fit together. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.check.doctor.result import CheckResult, failed, ok, skipped, warning
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.fleet.agree import HostFacts, hosts_disagree
from gemmaspec.core.fleet.hosts import Host, host_line
from gemmaspec.core.launcher.rank_facts import nccl_hangs
from gemmaspec.core.sentences import duration

GIB: Final = 1024**3
LITTLE_DISK: Final = 20 * GIB
JUMBO: Final = 9000


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One network interface of a host."""

    state: str
    """up, down or unknown, as the kernel says."""
    mtu: int
    """Bytes."""
    addresses: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What core/launcher/look.py printed on a host."""

    interfaces: Mapping[str, Interface]
    devices: Mapping[str, tuple[str, ...]]
    """RDMA devices, each with its interfaces."""
    models: Mapping[str, tuple[str, ...]]
    """Models of the Hub, each with the commits in the cache."""
    free: int
    """Bytes on the cache's disk."""
    sees_cache: bool
    nccl: str
    """Version of NCCL in the image; "" if no package has it."""


def parse_seen(text: str) -> Seen:
    """Return what a container printed. Raise EnvironmentMissing if that is not what core/launcher/look.py prints."""
    try:
        document = json.loads(text)
        return Seen(
            interfaces=dict(_interfaces(document["interfaces"])),
            devices=_lists(document["devices"]),
            models=_lists(document["models"]),
            free=int(document["free"]),
            sees_cache=bool(document["sees_cache"]),
            nccl=_word(document["nccl"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise EnvironmentMissing("the probe in the image printed nothing that describes the machine") from None


def _word(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > 200:
        raise ValueError("not a word")
    return value


@dataclass(frozen=True, kw_only=True)
class HostReading:
    """What one host answered."""

    host: Host
    facts: HostFacts | None = None
    """None if its daemon does not answer."""
    problem: CheckResult | None = None
    """Why its daemon does not answer."""
    image: str | None = None
    """The id of the image there; None if it is missing or not asked."""
    seen: Seen | None = None
    """What a container there has seen; None if it did not run."""
    unseen: str = ""
    """Why it did not run."""


def _interfaces(document: Mapping[str, Any]) -> Iterator[tuple[str, Interface]]:
    for name, about in document.items():
        addresses = tuple(map(_word, about["addresses"]))
        yield _word(name), Interface(state=_word(about["state"]), mtu=int(about["mtu"]), addresses=addresses)


def _lists(document: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {_word(name): tuple(map(_word, every)) for name, every in document.items()}


def rows(
    readings: Sequence[HostReading], *, image: str | None, revisions: Mapping[str, str | None], eager: bool = False
) -> list[CheckResult]:
    """Return the rows of all hosts, then those that compare them.

    `revisions` are the models of the Hub with the commits that the profile names; `eager`: it has no graphs.
    """
    described: list[CheckResult] = []
    for reading in readings:
        described += _rows_of(reading, image=image, revisions=revisions)
    return [*described, *_nccl(readings, eager=eager), *_compared(readings)]


def fleet_lines(readings: Sequence[HostReading]) -> list[str]:
    """Return fleet.yaml as the machines say it should be: the interface of each address, and its RDMA devices."""
    return ["hosts:", *(host_line(_as_seen(reading)) for reading in readings)]


def _as_seen(reading: HostReading) -> Host:
    if not reading.seen:
        return reading.host
    interface = _interface_of(reading) or reading.host.interface
    devices = tuple(name for name, nets in reading.seen.devices.items() if interface in nets)
    return dataclasses.replace(reading.host, interface=interface, hca=devices or reading.host.hca)


def _interface_of(reading: HostReading) -> str | None:
    """Return the interface that has the address of fleet.yaml."""
    if reading.seen:
        for name, about in reading.seen.interfaces.items():
            if reading.host.address in about.addresses:
                return name
    return None


def _rows_of(reading: HostReading, *, image: str | None, revisions: Mapping[str, str | None]) -> Iterator[CheckResult]:
    name = reading.host.name
    if reading.facts is None:
        yield reading.problem or failed(name, "its daemon was not asked", None)
        return
    facts = reading.facts
    ahead = f"clock {duration(abs(facts.ahead_s))} {'ahead' if facts.ahead_s >= 0 else 'behind'}"
    yield ok(name, f"docker {facts.docker}, {facts.architecture}, {ahead}")
    if image and reading.image is None:
        yield failed(f"{name} image", f"{image} is missing", f"docker pull {image}    # on {name}")
        return
    if image:
        yield ok(f"{name} image", f"{image} is {(reading.image or '')[:19]}…")
    if not reading.seen:
        yield skipped(f"{name} link", reading.unseen)
        return
    yield _link(reading, reading.seen)
    yield from _devices(reading, reading.seen)
    yield from _models(reading, reading.seen, revisions)
    left = reading.seen.free
    free = f"{left / GIB:.0f} GiB free"
    yield (
        warning(f"{name} disk", free, f"docker system df    # on {name}")
        if left < LITTLE_DISK
        else ok(f"{name} disk", free)
    )


def _link(reading: HostReading, seen: Seen) -> CheckResult:
    name, host = f"{reading.host.name} link", reading.host
    about = seen.interfaces.get(host.interface)
    if about is None:
        known = ", ".join(seen.interfaces)
        return failed(name, f"it has no interface {host.interface} (it has: {known})", "ip -brief address    # there")
    if host.address not in about.addresses:
        there = _interface_of(reading)
        if there:
            where = f"; {there} has it"
        else:
            where = f" (it has: {', '.join(about.addresses) or 'none'})"
        return failed(name, f"{host.interface} does not have {host.address}{where}", "ip -brief address    # there")
    if about.state not in ("up", "unknown"):
        return failed(name, f"{host.interface} is {about.state}", f"ip link set {host.interface} up    # there")
    return ok(name, f"{host.interface} is up with {host.address}, MTU {about.mtu}")


def _devices(reading: HostReading, seen: Seen) -> Iterator[CheckResult]:
    name, devices = f"{reading.host.name} rdma", seen.devices
    for device in reading.host.hca:
        if device.partition(":")[0] not in devices:
            known = ", ".join(devices) or "none"
            yield failed(name, f"it has no RDMA device {device} (it has: {known})", "ibdev2netdev    # there")
            return
    if reading.host.hca:
        yield ok(name, ", ".join(reading.host.hca))
    elif devices:
        yield warning(name, f"it has {', '.join(devices)}, and fleet.yaml names none: NCCL will use sockets")


def _nccl(readings: Sequence[HostReading], *, eager: bool) -> Iterator[CheckResult]:
    versions = {}
    for reading in readings:
        if reading.seen and reading.seen.nccl:
            versions[reading.host.name] = reading.seen.nccl
    for host, version in versions.items():
        hangs = nccl_hangs(version, eager=eager)
        yield warning(f"{host} nccl", hangs) if hangs else ok(f"{host} nccl", version)
    if len(set(versions.values())) > 1:
        which = ", ".join(f"{host} has {version}" for host, version in versions.items())
        yield failed("nccl", f"not the same on all hosts: {which}", "take the same image on all of them")


def _models(reading: HostReading, seen: Seen, revisions: Mapping[str, str | None]) -> Iterator[CheckResult]:
    name = f"{reading.host.name} models"
    if revisions and not seen.sees_cache:
        yield skipped(name, "the profile names no folder for the Hugging Face cache (caches.huggingface)")
        return
    for model, revision in revisions.items():
        commits = seen.models.get(model, ())
        if not commits:
            yield warning(
                name, f"{model} is not in its cache; the start will fetch it", f"hf download {model}    # there"
            )
        elif revision and revision not in commits and len(revision) == 40:
            yield warning(name, f"{model} is in its cache, but not the revision {revision[:12]}")
        else:
            yield ok(name, f"{model} is in its cache")


def _compared(readings: Sequence[HostReading]) -> Iterator[CheckResult]:
    facts = [reading.facts for reading in readings if reading.facts]
    if len(facts) < len(readings) or len(readings) < 2:
        return
    wrong = hosts_disagree(facts)
    yield (
        failed("all hosts", wrong.message, wrong.hint)
        if wrong
        else ok("all hosts", "separate daemons, one architecture, clocks agree")
    )
    images = {reading.host.name: reading.image for reading in readings if reading.image}
    if len(set(images.values())) > 1:
        which = ", ".join(f"{host} has {id_[:19]}…" for host, id_ in images.items() if id_)
        yield failed("all hosts", f"the image is not the same: {which}", "docker save IMAGE | docker -H OTHER load")
    sizes = {}
    for reading in readings:
        if reading.seen and reading.host.interface in reading.seen.interfaces:
            sizes[reading.host.name] = reading.seen.interfaces[reading.host.interface].mtu
    if len(set(sizes.values())) > 1:
        which = ", ".join(f"{host} has {mtu}" for host, mtu in sizes.items())
        yield failed(
            "all hosts", f"the MTU of the link is not the same: {which}", f"ip link set IFACE mtu {JUMBO}    # on both"
        )
