"""The program that routes between replicas: HAProxy, from the system."""

from __future__ import annotations

import shutil

from gemmaspec.errors import EnvironmentMissing


def router_program() -> str | None:
    """Return the path of HAProxy; None if it is not on this machine."""
    # Debian puts it where only root looks.
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")


def ensure_router() -> str:
    """Return the path of HAProxy. Raise EnvironmentMissing if it is not installed."""
    if program := router_program():
        return program
    raise EnvironmentMissing("the router of replicas, haproxy, is not installed", hint="sudo apt-get install haproxy")
