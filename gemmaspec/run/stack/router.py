"""The router's configuration, from a profile. Pure.

Checked against HAProxy 2.6, the first with `balance hash`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Final

from gemmaspec.core.profile.model import MOST_REPLICAS, Policy

BACKEND: Final = "replicas"
"""The name of HAProxy's backend; its servers are r1, r2 …"""
ADMIN_SOCKET: Final = "admin.sock"
"""HAProxy's runtime socket, in the router's folder, which only its owner can open."""
CONFIG_FILE: Final = "haproxy.cfg"
_FORM: Final = Path(__file__).with_name(CONFIG_FILE)
"""Its lines with set-var are for the policy `conversation`: how one is known, as long as its beginning stands in the
first 64 KiB. A message is a text or a list of parts; what follows the first one of a user changes from turn to turn."""
CONNECTIONS: Final = 1536
"""Clients' connections at once. Each takes two files, and 4,096 is the lowest hard limit that systems set."""
CONNECTIONS_OF_ONE: Final = 1024
"""Connections from one address, so that one client leaves room for others."""
REQUEST_S: Final = 10
"""How long a client may take to send a request's headers and the beginning of its body."""
_METRICS_CONNECTIONS: Final = 16

# Without hash-balance-factor: with it HAProxy 2.6.12 answered 503 for all requests after one of two replicas had died.
_BALANCE: Final[dict[Policy, tuple[str, ...]]] = {
    "conversation": ("balance hash var(txn.conversation)", "hash-type consistent"),
    "leastconn": ("balance leastconn",),
    "round_robin": ("balance roundrobin",),
}


def haproxy_config(*, bind: str, port: int, metrics_port: int, policy: Policy, first_port: int) -> str:
    """Return haproxy.cfg. Every replica that there could be has a place, which is out of service until it is added.

    A request goes to another replica only if the first one refused the connection and so has read nothing of it: one
    that ends a server would otherwise end all of them. A connection to a replica carries one request, because vLLM
    closes an idle one after 5 s, and a request sent at that moment would be lost. `first_port` is that of replica 1.
    """
    servers = (f"server r{index} 127.0.0.1:{first_port + index - 1} disabled" for index in range(1, MOST_REPLICAS + 1))
    lines = _FORM.read_text(encoding="utf-8").splitlines(keepends=True)
    form = "".join(line for line in lines if policy == "conversation" or "set-var(" not in line)
    address = f"[{bind}]" if ":" in bind else bind
    return Template(form).substitute(
        address=address,
        port=port,
        metrics_port=metrics_port,
        socket=ADMIN_SOCKET,
        backend=BACKEND,
        request_s=REQUEST_S,
        connections=CONNECTIONS,
        connections_of_one=CONNECTIONS_OF_ONE,
        metrics_connections=_METRICS_CONNECTIONS,
        all_connections=CONNECTIONS + _METRICS_CONNECTIONS,
        balance=_indented(_BALANCE[policy]),
        servers=_indented(servers),
    )


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
