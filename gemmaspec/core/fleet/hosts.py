"""fleet.yaml: the machines that one server can span. Pure: text to checked hosts."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from gemmaspec.core.errors import ProfileError, UsageError
from gemmaspec.core.strict_yaml import Document, Path, parse

MOST_HOSTS: Final = 64
EXAMPLE: Final = "{docker: ssh://USER@HOST, address: 192.168.100.10, interface: enp1s0f1np1}"

_KEYS: Final = ("docker", "address", "interface", "hca")
_SCHEMES: Final = ("ssh", "tcp", "unix")
_HOST: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_CONTEXT: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.+-]{0,127}")
_INTERFACE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")
_HCA: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}(?::[0-9]{1,3})?")


@dataclass(frozen=True, kw_only=True)
class Host:
    """One machine of fleet.yaml."""

    name: str
    docker: str
    """A docker context, or the URL of a daemon (ssh://, tcp://, unix://)."""
    address: str
    """The address of `interface`, by which the other machines reach it."""
    interface: str
    hca: tuple[str, ...] = ()
    """RDMA devices, as NCCL_IB_HCA names them; empty for a link without RDMA."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The machines of one fleet.yaml, in its order."""

    file: str
    hosts: tuple[Host, ...]


def parse_fleet(text: str | bytes, *, file: str) -> Fleet:
    """Return the hosts of a fleet.yaml; bytes are those of a file.

    Raise ProfileError that lists every problem, each on its own line as file:line: text.
    """
    document = parse(text, file=file, error=ProfileError)
    problems = [f"{document.places.get(path, file)}: {why}" for path, why in _problems(document)]
    if problems:
        raise ProfileError("\n".join(problems), hint=f"a host is one line: NAME: {EXAMPLE}")
    hosts = [_host(name, row) for name, row in document.data["hosts"].items()]
    return Fleet(file=file, hosts=tuple(hosts))


def _host(name: str, row: Mapping[str, Any]) -> Host:
    return Host(
        name=name,
        docker=row["docker"],
        address=row["address"],
        interface=row["interface"],
        hca=tuple(row.get("hca", ())),
    )


def choose(fleet: Fleet, names: Sequence[str] | None, *, needed: int, profile: str) -> tuple[Host, ...]:
    """Return the hosts of a server by rank: those of `names` in this order, or all of the fleet in its order.

    Raise UsageError for an unknown name, a name twice, and a number of hosts that the profile does not want.
    """
    known = {host.name: host for host in fleet.hosts}
    wanted = list(known) if names is None else list(names)
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"unknown host {name!r}{_guess(name, list(known))} ({fleet.file} has: {', '.join(known)})",
                hint=f"gemmaspec up {profile} --hosts {','.join(list(known)[:needed])}",
            )
        if wanted.count(name) > 1:
            raise UsageError(f"--hosts names {name} twice; each rank needs a machine of its own")
    if len(wanted) != needed:
        if len(known) >= needed:
            few = f"gemmaspec up {profile} --hosts {','.join(list(known)[:needed])}"
        else:
            few = None
        if names is None:
            source = f"{fleet.file} has"
        else:
            source = "--hosts names"
        raise UsageError(
            f"{profile} runs on {needed} machines (nodes: {needed}), and {source} {len(wanted)}",
            hint=few or f"add a host to {fleet.file}: NAME: {EXAMPLE}",
        )
    return tuple(known[name] for name in wanted)


def host_line(host: Host) -> str:
    """Return the line of a host as fleet.yaml has it, below `hosts:`."""
    hca = f", hca: [{', '.join(host.hca)}]" if host.hca else ""
    if ":" in host.address:
        address = f"'{host.address}'"
    else:
        address = host.address
    return f"  {host.name}: {{docker: {host.docker}, address: {address}, interface: {host.interface}{hca}}}"


def _problems(document: Document) -> Iterator[tuple[Path, str]]:
    data = document.data
    if not isinstance(data, dict):
        yield (), "the file must be a map with the key hosts"
        return
    for key in data:
        if key != "hosts":
            yield (key,), f"unknown key {key!r}{_guess(key, ['hosts'])} (known: hosts)"
    hosts = data.get("hosts")
    if not isinstance(hosts, dict) or not hosts:
        if "hosts" in data or not data:
            yield ("hosts",) if "hosts" in data else (), "hosts: must be a map of at least one host"
        return
    if len(hosts) > MOST_HOSTS:
        yield ("hosts",), f"hosts: has {len(hosts)} hosts, but at most {MOST_HOSTS} are possible"
        return
    for name, host in hosts.items():
        yield from _problems_of(name, host)
    if all(isinstance(host, dict) for host in hosts.values()):
        yield from _twice(hosts, "address", "every machine needs an address of its own")
        yield from _twice(hosts, "docker", "one daemon cannot be two machines")


def _problems_of(name: str, host: Any) -> Iterator[tuple[Path, str]]:
    at: Path = ("hosts", name)
    if why := _wrong_name(name):
        yield at, why
        return
    if not isinstance(host, dict):
        yield at, f"{name}: must be a map, such as {EXAMPLE}"
        return
    for key in host:
        if key not in _KEYS:
            yield (*at, key), f"{name}: unknown key {key!r}{_guess(key, _KEYS)} (known: {', '.join(_KEYS)})"
    for key in ("docker", "address", "interface"):
        if key not in host:
            yield at, f"{name}: {key} is missing"
        elif why := _wrong(key, host[key]):
            yield (*at, key), f"{name}.{key}: {why}"
    if "hca" in host and (why := _wrong_hca(host["hca"])):
        yield (*at, "hca"), f"{name}.hca: {why}"


def wrong_host(host: Host) -> str | None:
    """Return what is wrong with the name, address, interface or RDMA devices of a host; None if nothing is."""
    if why := _wrong_name(host.name):
        return why
    for key, value in (("address", host.address), ("interface", host.interface)):
        if why := _wrong(key, value):
            return f"{host.name}.{key}: {why}"
    why = _wrong_hca(list(host.hca))
    if why:
        return f"{host.name}.hca: {why}"
    return None


def _wrong_name(name: str) -> str | None:
    if _HOST.fullmatch(name):
        return None
    return f"the host name {name!r} may have lower-case letters, digits and hyphens only"


def _wrong(key: str, value: Any) -> str | None:
    if not isinstance(value, str):
        return f"must be text, not {value!r}"
    if key == "docker":
        return _wrong_docker(value)
    if key == "address":
        return _wrong_address(value)
    if _INTERFACE.fullmatch(value):
        return None
    return f"{value!r} is not the name of a network interface"


def _wrong_docker(value: str) -> str | None:
    if "://" not in value:
        if _CONTEXT.fullmatch(value):
            return None
        return f"{value!r} is neither a docker context nor a URL"
    try:
        parts = urlsplit(value)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return f"{value!r} is not a valid URL"
    if parts.scheme not in _SCHEMES:
        return f"{value!r} must begin with ssh://, tcp:// or unix://"
    if parts.password:
        return "a password does not belong in this file; use an SSH key"
    if parts.scheme == "unix":
        missing = not parts.path.startswith("/")
    else:
        missing = not parts.hostname
    dashed = (parts.hostname or "").startswith("-") or (parts.username or "").startswith("-")
    printable = value.isprintable() and not any(map(str.isspace, value))
    if missing or dashed or not port_is_valid or not printable:
        return f"{value!r} is not a valid URL"
    return None


def _wrong_address(value: str) -> str | None:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return f"{value!r} is not an IP address"
    if "%" in value or address.is_loopback or address.is_unspecified or address.is_multicast:
        return f"the other machines cannot reach {value}; write the address of the link between them"
    return None


def _wrong_hca(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return "must be a list of RDMA devices, such as [rocep1s0f1, roceP2p1s0f1]"
    wrong = [item for item in value if not _HCA.fullmatch(item)]
    if wrong:
        return f"{wrong[0]!r} is not the name of an RDMA device"
    return None


def _twice(hosts: Mapping[str, Mapping[str, Any]], key: str, why: str) -> Iterator[tuple[Path, str]]:
    seen: dict[str, str] = {}
    for name, host in hosts.items():
        value = host.get(key)
        if isinstance(value, str):
            same = _canonical(key, value)
            if same in seen:
                yield ("hosts", name, key), f"{name}.{key}: {value} is also {key} of {seen[same]}; {why}"
            seen.setdefault(same, name)


def _canonical(key: str, value: str) -> str:
    try:
        if key == "address":
            return str(ipaddress.ip_address(value))
        return value.rstrip("/")
    except ValueError:
        return value


def _guess(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return ""
