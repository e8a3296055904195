"""Which docker daemon to use, and why it does not answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import docker
from docker.context import ContextAPI
from docker.context.config import get_current_context_name
from docker.errors import DockerException

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.waiting import WAITS

DEFAULT_URL: Final = "unix:///var/run/docker.sock"
TIMEOUT_S: Final = 20


@dataclass(frozen=True)
class DockerEndpoint:
    """The address of a docker daemon and the setting that chose it."""

    url: str
    chosen_by: str
    """`DOCKER_HOST`, `context NAME`, `the default`, or the host of fleet.yaml that names it."""
    context: str | None = None
    """The docker context that a host of fleet.yaml names."""
    of_fleet: bool = False
    """Whether a host of fleet.yaml names it, whatever the environment says."""

    @property
    def remote(self) -> bool:
        """Whether the daemon is on another machine, with its own ports and folders."""
        return not self.url.startswith(("unix://", "http+unix://", "npipe://", "/"))

    @property
    def machine(self) -> str | None:
        """The name or address of the daemon's machine; None for this one."""
        if self.remote:
            return urlsplit(self.url).hostname
        return None

    def environment(self) -> Mapping[str, str]:
        """Return the variables by which the docker CLI uses this daemon; none if the environment chose it."""
        if not self.of_fleet:
            return {}
        return {"DOCKER_HOST": "" if self.context else self.url, "DOCKER_CONTEXT": self.context or ""}

    def __str__(self) -> str:
        return f"{self.url} ({self.chosen_by})"


def find() -> DockerEndpoint:
    """Return the daemon that the docker CLI would use: DOCKER_HOST, else DOCKER_CONTEXT, else the current context.

    Raise EnvironmentMissing for an unknown context, because the SDK would silently use the default daemon.
    """
    if host := os.environ.get("DOCKER_HOST"):
        return DockerEndpoint(host, "DOCKER_HOST")
    name = os.environ.get("DOCKER_CONTEXT") or get_current_context_name()
    if name == "default":
        return DockerEndpoint(DEFAULT_URL, "the default")
    context = ContextAPI.get_context(name)
    if context is None or not context.Host:
        raise EnvironmentMissing(f"the docker context {name!r} does not exist", hint="docker context ls")
    return DockerEndpoint(context.Host, f"context {name}")


def of_host(host: str, docker: str) -> DockerEndpoint:
    """Return the daemon of a host of fleet.yaml: a URL, or the name of a docker context.

    Raise EnvironmentMissing for an unknown context.
    """
    if "://" in docker:
        return DockerEndpoint(docker, host, of_fleet=True)
    if docker == "default":
        return DockerEndpoint(DEFAULT_URL, host, of_fleet=True)
    context = ContextAPI.get_context(docker)
    if context is None or not context.Host:
        raise EnvironmentMissing(
            f"{host}: the docker context {docker!r} does not exist",
            hint=f"docker context create {docker} --docker host=ssh://USER@HOST    # or docker context ls",
        )
    return DockerEndpoint(context.Host, f"{host}, context {docker}", context=docker, of_fleet=True)


def connect(endpoint: DockerEndpoint) -> docker.DockerClient:
    """Return a client after the daemon answered once. Raise EnvironmentMissing with the reason if it does not."""
    try:
        with WAITS.on("the Docker daemon"):
            return _connected(endpoint)
    except (DockerException, OSError) as error:
        raise _unanswered(endpoint, error) from None


def _connected(endpoint: DockerEndpoint) -> docker.DockerClient:
    """Return a client, which asks the daemon for its version. Raise as the SDK does."""
    _knock(endpoint)
    if not endpoint.of_fleet:
        return docker.from_env(timeout=TIMEOUT_S, use_ssh_client=True)
    if endpoint.context:
        tls = ContextAPI.get_context(endpoint.context).TLSConfig
    else:
        tls = None
    return docker.DockerClient(base_url=endpoint.url, tls=tls or False, timeout=TIMEOUT_S, use_ssh_client=True)


@contextmanager
def client(where: DockerEndpoint | None = None) -> Iterator[docker.DockerClient]:
    """Yield a client of the daemon and close it at the end; every query of Docker besides Compose uses it.

    Raise EnvironmentMissing if the daemon does not answer.
    """
    connected = connect(where or find())
    try:
        yield connected
    finally:
        connected.close()


def _knock(endpoint: DockerEndpoint) -> None:
    """Connect to a local socket and disconnect, because the SDK leaks the socket on failure and wraps the reason."""
    if endpoint.url.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as knocking:
            knocking.settimeout(TIMEOUT_S)
            knocking.connect(endpoint.url.removeprefix("unix://"))


def _unanswered(endpoint: DockerEndpoint, error: BaseException) -> EnvironmentMissing:
    """Return the error for the operating system's own one, which the SDK wraps several times."""
    cause = _root_cause(error)
    if "paramiko" in str(error):
        return EnvironmentMissing(
            f"docker at {endpoint}: the Python package paramiko is needed for ssh",
            hint="pip install 'docker[ssh]'",
        )
    if isinstance(cause, FileNotFoundError):
        return EnvironmentMissing(
            f"docker is not answering: no socket at {endpoint}", hint="sudo systemctl start docker"
        )
    if isinstance(cause, PermissionError):
        return EnvironmentMissing(
            f"docker is running, but this user may not use it: permission denied for {endpoint}",
            hint="sudo usermod -aG docker $USER    # then log in again",
        )
    if isinstance(cause, ConnectionRefusedError):
        return EnvironmentMissing(
            f"docker is not answering: nothing listens at {endpoint}", hint="sudo systemctl restart docker"
        )
    if isinstance(cause, TimeoutError):
        return EnvironmentMissing(
            f"docker is not answering: no answer from {endpoint} within {TIMEOUT_S} s", hint="docker info"
        )
    return EnvironmentMissing(f"docker is not answering at {endpoint}: {why(error)}", hint="docker info")


def why(error: BaseException) -> str:
    """Return the operating system's own words for an error that the SDK wraps several times."""
    cause = _root_cause(error)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause)


def _root_cause(error: BaseException) -> BaseException:
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error
