"""Check whether a port of this machine is free, and which process uses it."""

from __future__ import annotations

import contextlib
import errno
import socket

from gemmaspec.core.errors import EnvironmentMissing
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
