"""What one machine says of itself, asked in a container of the server's own image.

    python3 look.py [MODEL…]

It prints one line of JSON. It uses only the standard library of Python 3.10, imports nothing of gemmaspec, and reads
/sys, /proc and the mounted caches: /cache/hub as the Hugging Face cache, if there is one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
from importlib import metadata
from pathlib import Path

SIOCGIFADDR = 0x8915
CACHE = Path("/cache")


def text_of(path: str) -> str:
    """Return the first line of a file; "" if it is missing."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def listed(path: str) -> list[str]:
    """Return the names in a folder; none if it is missing."""
    try:
        return sorted(one.name for one in Path(path).iterdir())
    except OSError:
        return []


def addresses(interface: str) -> list[str]:
    """Return the addresses of an interface."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("256s", interface.encode()[:15])
        with contextlib.suppress(OSError):  # it has none
            found.append(socket.inet_ntoa(fcntl.ioctl(asking.fileno(), SIOCGIFADDR, request)[20:24]))
    try:
        rows = [row.split() for row in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()]
    except OSError:
        rows = []
    six = [row[0] for row in rows if row[5] == interface]
    return [*found, *(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(one)) for one in six)]


def interfaces() -> dict[str, object]:
    """Return every interface with its state, MTU and addresses."""
    return {
        name: {
            "state": text_of(f"/sys/class/net/{name}/operstate"),
            "mtu": int(text_of(f"/sys/class/net/{name}/mtu") or 0),
            "addresses": addresses(name),
        }
        for name in listed("/sys/class/net")
        if Path(f"/sys/class/net/{name}").is_dir()
    }


def devices() -> dict[str, list[str]]:
    """Return every RDMA device with its interfaces."""
    root = "/sys/class/infiniband"
    return {name: listed(f"{root}/{name}/device/net") for name in listed(root)}


def commits(model: str) -> list[str]:
    """Return the commits of a model in the cache."""
    return listed(f"{CACHE}/hub/models--" + model.replace("/", "--") + "/snapshots")


def nccl() -> str:
    """Return the version of NCCL of this Python's packages; "" if there is none."""
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def free() -> int:
    """Return the free bytes of the cache's disk, or else of the root's."""
    seen = os.statvfs(CACHE if CACHE.is_dir() else "/")
    return seen.f_bavail * seen.f_frsize


def main(models: list[str]) -> None:
    """Print what this machine says."""
    told = {"interfaces": interfaces(), "devices": devices(), "models": {one: commits(one) for one in models}}
    sys.stdout.write(json.dumps({**told, "free": free(), "nccl": nccl(), "sees_cache": CACHE.is_dir()}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
