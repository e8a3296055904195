"""Docker volumes of stacks that do not run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import docker
from docker.errors import APIError

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine import endpoint
from gemmaspec.run.engine.server import Node

_PROJECT: Final = "com.docker.compose.project"


def unused(prefix: str, node: Node | None = None) -> list[tuple[str, str]]:
    """Return name and Compose project of every unused volume whose project begins with `prefix`.

    `node` is a machine of fleet.yaml; None stands for the daemon that the docker CLI uses. Raise EnvironmentMissing if
    it does not answer.
    """
    with _client(node) as client:
        volumes = client.volumes.list(filters={"dangling": True, "label": _PROJECT})
        labelled = ((volume.name, str((volume.attrs.get("Labels") or {}).get(_PROJECT, ""))) for volume in volumes)
        return sorted((name, project) for name, project in labelled if project.startswith(prefix))


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

    where = endpoint.of_host(node.host, node.docker) if node else endpoint.find()
    with endpoint.client(where) as client:
        try:
            yield client
        except APIError as error:
            raise EnvironmentMissing(
                f"docker rejected the request: {error.explanation}", hint="docker volume ls"
            ) from None
        except DockerException as error:
            raise EnvironmentMissing(f"docker is not answering: {error}", hint="docker info") from None
