"""Rows of `doctor --fleet`: what each machine of fleet.yaml says, and whether they fit together. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.doctor.result import CheckResult, failed, ok, skipped, warning
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.fleet.agree import HostFacts, duration, hosts_disagree
from gemmaspec.fleet.hosts import Host, host_line
from gemmaspec.launcher.rank_facts import nccl_hangs

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
    """What launcher/look.py printed on a host."""

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
    """Return what a container printed. Raise EnvironmentMissing if that is not what launcher/look.py prints."""
    try:
        found = json.loads(text)
        interfaces = {
            _word(name): Interface(
                state=_word(one["state"]), mtu=int(one["mtu"]), addresses=tuple(map(_word, one["addresses"]))
            )
            for name, one in found["interfaces"].items()
        }
        lists = {
            key: {_word(name): tuple(map(_word, every)) for name, every in found[key].items()}
            for key in ("devices", "models")
        }
        return Seen(
            interfaces=interfaces,
            devices=lists["devices"],
            models=lists["models"],
            free=int(found["free"]),
            sees_cache=bool(found["sees_cache"]),
            nccl=_word(found["nccl"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise EnvironmentMissing("the probe in the image printed nothing that describes the machine") from None


def _word(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > 200:
        raise ValueError("not a word")
    return value


@dataclass(frozen=True, kw_only=True)
class HostReading:
    """What could be asked of one host."""

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


def rows(
    readings: Sequence[HostReading], *, image: str | None, revisions: Mapping[str, str | None], eager: bool = False
) -> list[CheckResult]:
    """Return the rows of all hosts, then those that compare them.

    `revisions` are the models of the Hub with the commits that the profile names; `eager`: it has no graphs.
    """
    found = [row for one in readings for row in _rows_of(one, image=image, revisions=revisions)]
    return [*found, *_nccl(readings, eager=eager), *_compared(readings)]


def fleet_lines(readings: Sequence[HostReading]) -> list[str]:
    """Return fleet.yaml as the machines say it should be: the interface of each address, and its RDMA devices."""
    return ["hosts:", *(host_line(_as_seen(one)) for one in readings)]


def _as_seen(one: HostReading) -> Host:
    if not one.seen:
        return one.host
    interface = _interface_of(one) or one.host.interface
    devices = tuple(name for name, nets in one.seen.devices.items() if interface in nets)
    return dataclasses.replace(one.host, interface=interface, hca=devices or one.host.hca)


def _interface_of(one: HostReading) -> str | None:
    """Return the interface that has the address of fleet.yaml."""
    every = one.seen.interfaces if one.seen else {}
    return next((name for name, about in every.items() if one.host.address in about.addresses), None)


def _rows_of(one: HostReading, *, image: str | None, revisions: Mapping[str, str | None]) -> Iterator[CheckResult]:
    name = one.host.name
    if one.facts is None:
        yield one.problem or failed(name, "its daemon was not asked", None)
        return
    facts = one.facts
    ahead = f"clock {duration(abs(facts.ahead_s))} {'ahead' if facts.ahead_s >= 0 else 'behind'}"
    yield ok(name, f"docker {facts.docker}, {facts.architecture}, {ahead}")
    if image and one.image is None:
        yield failed(f"{name} image", f"{image} is missing", f"docker pull {image}    # on {name}")
        return
    if image:
        yield ok(f"{name} image", f"{image} is {(one.image or '')[:19]}…")
    if not one.seen:
        yield skipped(f"{name} link", one.unseen)
        return
    yield _link(one, one.seen)
    yield from _devices(one, one.seen)
    yield from _models(one, one.seen, revisions)
    left = one.seen.free
    said = f"{left / GIB:.0f} GiB free"
    yield (
        warning(f"{name} disk", said, f"docker system df    # on {name}")
        if left < LITTLE_DISK
        else ok(f"{name} disk", said)
    )


def _link(one: HostReading, seen: Seen) -> CheckResult:
    name, host = f"{one.host.name} link", one.host
    about = seen.interfaces.get(host.interface)
    if about is None:
        known = ", ".join(seen.interfaces)
        return failed(name, f"it has no interface {host.interface} (it has: {known})", "ip -brief address    # there")
    if host.address not in about.addresses:
        there = _interface_of(one)
        where = f"; {there} has it" if there else f" (it has: {', '.join(about.addresses) or 'none'})"
        return failed(name, f"{host.interface} does not have {host.address}{where}", "ip -brief address    # there")
    if about.state not in ("up", "unknown"):
        return failed(name, f"{host.interface} is {about.state}", f"ip link set {host.interface} up    # there")
    return ok(name, f"{host.interface} is up with {host.address}, MTU {about.mtu}")


def _devices(one: HostReading, seen: Seen) -> Iterator[CheckResult]:
    name, devices = f"{one.host.name} rdma", seen.devices
    for device in one.host.hca:
        if device.partition(":")[0] not in devices:
            known = ", ".join(devices) or "none"
            yield failed(name, f"it has no RDMA device {device} (it has: {known})", "ibdev2netdev    # there")
            return
    if one.host.hca:
        yield ok(name, ", ".join(one.host.hca))
    elif devices:
        yield warning(name, f"it has {', '.join(devices)}, and fleet.yaml names none: NCCL will use sockets")


def _nccl(readings: Sequence[HostReading], *, eager: bool) -> Iterator[CheckResult]:
    versions = {one.host.name: one.seen.nccl for one in readings if one.seen and one.seen.nccl}
    for host, version in versions.items():
        hangs = nccl_hangs(version, eager=eager)
        yield warning(f"{host} nccl", hangs) if hangs else ok(f"{host} nccl", version)
    if len(set(versions.values())) > 1:
        which = ", ".join(f"{host} has {version}" for host, version in versions.items())
        yield failed("nccl", f"not the same on all hosts: {which}", "take the same image on all of them")


def _models(one: HostReading, seen: Seen, revisions: Mapping[str, str | None]) -> Iterator[CheckResult]:
    name = f"{one.host.name} models"
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
    facts = [one.facts for one in readings if one.facts]
    if len(facts) < len(readings) or len(readings) < 2:
        return
    wrong = hosts_disagree(facts)
    yield (
        failed("all hosts", wrong.message, wrong.hint)
        if wrong
        else ok("all hosts", "separate daemons, one architecture, clocks agree")
    )
    images = {one.host.name: one.image for one in readings if one.image}
    if len(set(images.values())) > 1:
        said = ", ".join(f"{host} has {id_[:19]}…" for host, id_ in images.items() if id_)
        yield failed("all hosts", f"the image is not the same: {said}", "docker save IMAGE | docker -H OTHER load")
    sizes = {
        one.host.name: about.mtu
        for one in readings
        if one.seen and (about := one.seen.interfaces.get(one.host.interface))
    }
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{host} has {mtu}" for host, mtu in sizes.items())
        yield failed(
            "all hosts", f"the MTU of the link is not the same: {said}", f"ip link set IFACE mtu {JUMBO}    # on both"
        )
