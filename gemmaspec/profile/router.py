"""The router of a profile with replicas: what its YAML can say, and what follows from it. Pure."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from gemmaspec.profile.fields import Int, Positive, Section

Policy = Literal["conversation", "leastconn", "round_robin"]
Port = Annotated[Int, Field(ge=1, le=65535)]

MOST_REPLICAS: Final = 16
"""Replicas of one profile on one machine; HAProxy's configuration has a place for each."""


class Router(Section):
    """What stands before the replicas: clients ask the router, and it asks a replica."""

    policy: Policy = "conversation"
    """Which replica gets a request: conversation (the one that had the conversation's earlier requests, and so has its
    prompt cached), leastconn or round_robin. A conversation is
    known by its X-Session-ID, else by how it begins: the system prompt and the first message."""
    port: Port | None = None
    """Port that clients use; default: serve.port. The replicas listen on the ports after serve.port."""
    metrics_port: Port | None = None
    """Port of the router's own metrics, on 127.0.0.1; default: the port after the last replica's."""
    drain_seconds: Positive = 300
    """How long a replica that is taken out may finish its requests before it is stopped."""
