"""Docker volumes of stacks: made with a label of their state folder, and found again when nothing uses them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import docker
import yaml
from docker.errors import APIError, NotFound

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine import endpoint
from gemmaspec.run.engine.server import Node

_PROJECT: Final = "com.docker.compose.project"
_VOLUME: Final = "com.docker.compose.volume"
STATE: Final = "gemmaspec.dev/state"
"""The label with the id of the state folder that made a volume."""


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A volume that no container uses."""

    name: str
    project: str
    """The Compose project that it belongs to."""
    state: str
    """The id of the state folder that made it; "" for a volume that Compose made, as up to 0.3."""


def make(client: docker.DockerClient, project: str, compose_text: str, state: str) -> None:
    """Make the missing volumes of a stack, with Compose's own labels and the id of the state folder.

    The label is not in compose.yaml: it would differ from folder to folder, and Compose offers to make a volume again,
    without what it holds, when its configuration changes. Volumes with options of their own are left to Compose.
    """
    for key in _plain_volumes(compose_text):
        name = f"{project}_{key}"
        try:
            client.volumes.get(name)
        except NotFound:
            client.volumes.create(name, labels={_PROJECT: project, _VOLUME: key, STATE: state})


def _plain_volumes(compose_text: str) -> list[str]:
    """Return the volumes of a Compose file that have no options; none of a file that Compose will refuse itself."""
    try:
        whole = yaml.safe_load(compose_text)
        return [str(key) for key, options in whole.get("volumes", {}).items() if not options]
    except (yaml.YAMLError, AttributeError):
        return []


def unused(prefix: str, node: Node | None = None) -> list[Volume]:
    """Return every unused volume whose Compose project begins with `prefix`, by name.

    `node` is a machine of fleet.yaml; None stands for the daemon that the docker CLI uses. Raise EnvironmentMissing if
    it does not answer.
    """
    found = []
    with _client(node) as client:
        for volume in client.volumes.list(filters={"dangling": True, "label": _PROJECT}):
            labels = volume.attrs.get("Labels") or {}
            project = str(labels.get(_PROJECT, ""))
            if project.startswith(prefix):
                found.append(Volume(name=volume.name, project=project, state=str(labels.get(STATE, ""))))
    return sorted(found, key=lambda volume: volume.name)


def remove(name: str, node: Node | None = None) -> None:
    """Remove a volume. Raise EnvironmentMissing if the daemon refuses, for example because a container uses it."""
    with _client(node) as client:
        client.volumes.get(name).remove()


def same_daemon(node: Node) -> bool:
    """Return whether a machine of fleet.yaml is reached as the docker CLI reaches its own daemon."""
    try:
        return endpoint.of_host(node.host, node.docker).url == endpoint.find().url
    except EnvironmentMissing:
        return False


@contextmanager
def _client(node: Node | None) -> Iterator[docker.DockerClient]:
    from docker.errors import DockerException

    if node:
        where = endpoint.of_host(node.host, node.docker)
    else:
        where = endpoint.find()
    with endpoint.client(where) as client:
        try:
            yield client
        except APIError as error:
            raise EnvironmentMissing(
                f"docker rejected the request: {error.explanation}", hint="docker volume ls"
            ) from None
        except DockerException as error:
            raise EnvironmentMissing(f"docker is not answering: {error}", hint="docker info") from None
