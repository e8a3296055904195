"""Docker volumes of stacks: made with a label of their state folder, and found again when nothing uses them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import docker
import yaml
from docker.errors import APIError, NotFound
from docker.models.volumes import Volume as DockerVolume

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
    """The id of the state folder that made it; "" for a volume that Compose made, as up to 0.3.

    For one in memory that Compose made: the id that other volumes of its project have."""
    in_memory: bool = False
    """Whether it is a tmpfs, as that of a stack's watch: nothing is in it while no container uses it."""


def make(client: docker.DockerClient, project: str, compose_text: str, state: str) -> None:
    """Make the missing volumes of a stack, with Compose's own labels and the id of the state folder.

    The label is not in compose.yaml: it would differ from folder to folder, and Compose offers to make a volume again,
    without what it holds, when its configuration changes.
    """
    for key, driver_opts in _rendered(compose_text).items():
        name = f"{project}_{key}"
        try:
            client.volumes.get(name)
        except NotFound:
            labels = {_PROJECT: project, _VOLUME: key, STATE: state}
            client.volumes.create(name, driver="local", driver_opts=driver_opts, labels=labels)


def _rendered(compose_text: str) -> dict[str, dict[str, str]]:
    """Return the volumes of a Compose file as gemmaspec renders them, each with its driver_opts.

    One with other options was written by hand and is left to Compose; so are all of a file that Compose will refuse.
    """
    try:
        listed = yaml.safe_load(compose_text).get("volumes", {}).items()
        return {
            str(key): {str(name): str(value) for name, value in (options or {}).get("driver_opts", {}).items()}
            for key, options in listed
            if not options or set(options) == {"driver_opts"}
        }
    except (yaml.YAMLError, AttributeError, TypeError):
        return {}


def unused(prefix: str, node: Node | None = None) -> list[Volume]:
    """Return every unused volume whose Compose project begins with `prefix`, by name.

    `node` is a machine of fleet.yaml; None stands for the daemon that the docker CLI uses. Raise EnvironmentMissing if
    it does not answer.
    """
    with _client(node) as client:
        made_by = _made_by(client)
        found = [
            _read(volume, made_by) for volume in client.volumes.list(filters={"dangling": True, "label": _PROJECT})
        ]
    ours = [volume for volume in found if volume.project.startswith(prefix)]
    return sorted(ours, key=lambda volume: volume.name)


def _made_by(client: docker.DockerClient) -> dict[str, str]:
    """Return the state folder's id of each Compose project, as labelled volumes have it, used ones too."""
    made_by = {}
    for volume in client.volumes.list(filters={"label": STATE}):
        labels = volume.attrs["Labels"]
        made_by[str(labels.get(_PROJECT, ""))] = str(labels[STATE])
    return made_by


def _read(volume: DockerVolume, made_by: dict[str, str]) -> Volume:
    """Return what is known of a volume that Compose or `make` made."""
    labels = volume.attrs.get("Labels") or {}
    project, state = str(labels.get(_PROJECT, "")), str(labels.get(STATE, ""))
    in_memory = (volume.attrs.get("Options") or {}).get("type") == "tmpfs"
    if in_memory and not state:
        state = made_by.get(project, "")
    return Volume(name=volume.name, project=project, state=state, in_memory=in_memory)


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
