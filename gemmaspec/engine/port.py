"""Whether a port of this machine is free, and who holds it."""

from __future__ import annotations

import contextlib
import errno
import socket

import psutil

from gemmaspec.engine.lines import clean
from gemmaspec.errors import EnvironmentMissing


def ensure_free(bind: str, port: int, *, as_root: bool = False) -> None:
    """Raise EnvironmentMissing when nothing can listen on `port` of `bind`, naming the holder if possible.

    `as_root`: whoever will listen is allowed to use ports below 1024, even if this process is not.
    """
    try:
        _try_to_listen(bind, port)
    except OSError as error:
        if error.errno == errno.EACCES and as_root:
            return
        raise _explained(bind, port, error) from None


def _try_to_listen(bind: str, port: int) -> None:
    """Listen for a moment. SO_REUSEADDR ignores connections that are only fading away, not listeners."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        candidate.bind(address)
        candidate.listen(1)


def _explained(bind: str, port: int, error: OSError) -> EnvironmentMissing:
    if error.errno == errno.EADDRINUSE:
        return port_taken(bind, port, holder(port) or "another process, which this user may not look at")
    if error.errno == errno.EACCES:
        return EnvironmentMissing(
            f"port {port} is below 1024 and may not be used by this user", hint="set serve.port to 8000"
        )
    return EnvironmentMissing(
        f"this machine cannot listen on the address {bind}: {error.strerror}",
        hint="ip -brief address    # serve.bind is one of these, 127.0.0.1 or 0.0.0.0",
    )


def port_taken(bind: str, port: int, by: str) -> EnvironmentMissing:
    """The one sentence for a port in use."""
    return EnvironmentMissing(
        f"port {port} on {bind} is taken by {by}",
        hint=f"sudo ss -ltnp 'sport = :{port}'    # stop it, or set serve.port to another port",
    )


def holder(port: int) -> str | None:
    """`name (pid N)` of the process that listens on `port`; None when this user may not see it."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and connection.pid and local and local.port == port:
                return f"{clean(psutil.Process(connection.pid).name())} (pid {connection.pid})"
    return None
