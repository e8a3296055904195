"""Check whether a port of this machine is free, and which process uses it."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Collection

from gemmaspec.core.errors import EnvironmentMissing, StartFailed
from gemmaspec.run.engine.lines import clean


def ensure_free(bind: str, port: int, *, as_root: bool = False) -> None:
    """Raise EnvironmentMissing, if possible with the process that holds it, unless `port` of `bind` is free.

    `as_root`: the server may use ports below 1024 even if this process may not.
    """
    try:
        _try_to_listen(bind, port)
    except OSError as error:
        if error.errno == errno.EACCES and as_root:
            return
        raise _explained(bind, port, error) from None


def _try_to_listen(bind: str, port: int) -> None:
    """Listen for a moment. SO_REUSEADDR ignores closing connections, but not listeners."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        candidate.bind(address)
        candidate.listen(1)


def _explained(bind: str, port: int, error: OSError) -> EnvironmentMissing:
    if error.errno == errno.EADDRINUSE:
        return port_taken(bind, port, holder(port) or "another process that this user may not inspect")
    if error.errno == errno.EACCES:
        return EnvironmentMissing(
            f"this user may not use port {port}, because it is below 1024", hint="set serve.port to 8000"
        )
    return EnvironmentMissing(
        f"cannot listen on the address {bind}: {error.strerror}",
        hint="ip -brief address    # set serve.bind to one of these, 127.0.0.1 or 0.0.0.0",
    )


def port_taken(bind: str, port: int, by: str) -> EnvironmentMissing:
    """Return the error for a port in use."""
    return EnvironmentMissing(
        f"port {port} on {bind} is in use by {by}",
        hint=f"sudo ss -ltnp 'sport = :{port}'    # stop it, or set serve.port to another port",
    )


def holder(port: int) -> str | None:
    """Return `name (pid N)` of the process that listens on `port`; None if this user may not see it."""
    import psutil  # slow to import, and most commands only ask whether the port is free

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and connection.pid and local and local.port == port:
                return f"{clean(psutil.Process(connection.pid).name())} (pid {connection.pid})"
    return None


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
