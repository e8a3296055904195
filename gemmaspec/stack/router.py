"""The router's command line and configuration, from a profile. Pure.

Checked against vllm-router 0.1.17 (its --help and its answers) and HAProxy 2.6.
"""

from __future__ import annotations

from typing import Final

from gemmaspec.profile.router import MOST_REPLICAS, Policy

BACKEND: Final = "replicas"
"""The name of HAProxy's backend; its servers are r1, r2 …"""
ADMIN_SOCKET: Final = "admin.sock"
"""HAProxy's runtime socket, in the router's folder, which only its owner can open."""
CONFIG_FILE: Final = "haproxy.cfg"
SESSION: Final = "X-Session-ID"
"""The header by which consistent_hash sends a conversation to the same replica, in both routers."""
RETRIED_BYTES: Final = 512 * 1024
"""The largest request that HAProxy keeps until a replica answers, and so can send to another one."""

_HEALTH_S: Final = 2
_BALANCE: Final[dict[Policy, tuple[str, ...]]] = {
    "leastconn": ("balance leastconn",),
    "round_robin": ("balance roundrobin",),
    "consistent_hash": (f"balance hdr({SESSION})", "hash-type consistent"),
}


def vllm_router_args(*, bind: str, port: int, metrics_port: int, policy: str) -> tuple[str, ...]:
    """Return the arguments of vllm-router. It starts with no replicas; each is added once it is ready.

    A retry goes to the same replica until its circuit opens. vllm-router's own 10 failures and 60 s fail the first
    requests after a replica has died, and refuse all if the other one is taken out within the minute.
    """
    return (
        "--host", bind, "--port", str(port), "--policy", policy,
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port),
        "--health-check-interval-secs", str(_HEALTH_S), "--health-check-timeout-secs", "2",
        "--health-failure-threshold", "2", "--health-success-threshold", "1",
        "--retry-max-retries", "5", "--request-timeout-secs", "3600",
        "--cb-failure-threshold", "2", "--cb-success-threshold", "1", "--cb-timeout-duration-secs", "5",
    )  # fmt: skip


def haproxy_config(*, bind: str, port: int, metrics_port: int, policy: Policy, first_port: int) -> str:
    """Return haproxy.cfg. Every replica that there could be has a place, which is out of service until it is added.

    A request that a replica has not begun to answer goes to another one. `first_port` is that of replica 1.
    """
    servers = [
        f"    server r{index} 127.0.0.1:{first_port + index - 1} disabled" for index in range(1, MOST_REPLICAS + 1)
    ]
    address = f"[{bind}]" if ":" in bind else bind
    return "\n".join(
        (
            "# Rendered by gemmaspec. Replicas are added and taken out through the runtime socket.",
            "global",
            f"    stats socket unix@{ADMIN_SOCKET} mode 600 level admin",
            "    log stdout format raw local0 warning",
            "    maxconn 1024",
            f"    tune.bufsize {RETRIED_BYTES}",
            "",
            "defaults",
            "    mode http",
            "    log global",
            "    timeout connect 2s",
            "    timeout client 1h",
            "    timeout server 1h",
            "    timeout queue 60s",
            "    option http-buffer-request",
            "    option redispatch 1",
            "    retries 3",
            "    retry-on conn-failure empty-response junk-response 500 502 503 504",
            "",
            "frontend api",
            f"    bind {address}:{port}",
            f"    default_backend {BACKEND}",
            "",
            "frontend metrics",
            f"    bind 127.0.0.1:{metrics_port}",
            "    http-request use-service prometheus-exporter if { path /metrics }",
            "    http-request deny",
            "",
            f"backend {BACKEND}",
            *(f"    {line}" for line in _BALANCE[policy]),
            "    option httpchk GET /health",
            "    http-check expect status 200",
            f"    default-server check inter {_HEALTH_S}s fall 2 rise 1",
            *servers,
            "",
        )
    )
