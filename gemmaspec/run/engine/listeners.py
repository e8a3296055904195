"""Check that a server is the only process that listens at its address."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Collection

from gemmaspec.core.errors import StartFailed
from gemmaspec.run.engine.lines import clean


def ensure_only(pids: Collection[int], bind: str, port: int) -> None:
    """Raise StartFailed unless these processes, and no others, listen on `port` of `bind`.

    SO_REUSEPORT lets several listeners share a port, and the system distributes connections among them.
    """
    listeners = _listeners(bind, port)
    if listeners is None:
        return  # this system does not list listeners
    others = [pid for pid in listeners if pid not in pids]
    if others:
        raise StartFailed(
            f"{_named(others[0])} also listens on port {port} of {bind}, so requests would go to two servers",
            hint=f"sudo ss -ltnp 'sport = :{port}'    # stop it, or set serve.port to another port",
        )
    if not listeners:
        raise StartFailed(f"no process listens on port {port} of {bind} any more")


def _listeners(bind: str, port: int) -> list[int | None] | None:
    """Return the pids that listen on `port` of an address that overlaps `bind`; None for another user's process."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    return [
        connection.pid
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
        and _overlaps(connection.laddr.ip, bind)
    ]


def _overlaps(bind: str, other: str) -> bool:
    """Return whether a connection can reach both listening addresses."""
    try:
        first, second = (ipaddress.ip_address(text) for text in (bind, other))
    except ValueError:
        return True  # a name may mean any address
    return first == second or first.is_unspecified or second.is_unspecified


def _named(pid: int | None) -> str:
    if pid is None:
        return "a process of another user"
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return f"{clean(psutil.Process(pid).name())} (pid {pid})"
    return f"pid {pid}"
