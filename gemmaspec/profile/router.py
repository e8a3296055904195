"""The router of a profile with replicas: what its YAML can say, and what follows from it. Pure."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from gemmaspec.profile.fields import Int, Positive, Section

RouterKind = Literal["vllm-router", "haproxy"]
Policy = Literal["cache_aware", "consistent_hash", "power_of_two", "round_robin", "leastconn"]
Port = Annotated[Int, Field(ge=1, le=65535)]

POLICIES: Final[dict[RouterKind, tuple[Policy, ...]]] = {
    "vllm-router": ("cache_aware", "consistent_hash", "power_of_two", "round_robin"),
    "haproxy": ("leastconn", "consistent_hash", "round_robin"),
}
"""The policies of each router, its default first."""
MOST_REPLICAS: Final = 16
"""Replicas of one profile on one machine; HAProxy's configuration has a place for each."""


class Router(Section):
    """What stands before the replicas: clients ask the router, and it asks a replica."""

    kind: RouterKind = "haproxy"
    """haproxy takes commands only from its owner; vllm-router knows which replica has seen a prompt's beginning, but
    any program and any web page on this machine can add a worker to it."""
    policy: Policy | None = None
    """Which replica gets a request: cache_aware (the one that has seen the prompt's beginning), consistent_hash (the
    same one for each X-Session-ID), power_of_two, round_robin or leastconn; default: leastconn,
    vllm-router's cache_aware."""
    port: Port | None = None
    """Port that clients use; default: serve.port. The replicas listen on the ports after serve.port."""
    metrics_port: Port | None = None
    """Port of the router's own metrics, on 127.0.0.1; default: the port after the last replica's."""
    drain_seconds: Positive = 300
    """How long a replica that is taken out may finish its requests before it is stopped."""
