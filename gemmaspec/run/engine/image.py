"""Images of stacks: local, pulled with progress, or why missing. Docker's attributes as facts; idle volumes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import docker
from docker.errors import APIError, ImageNotFound
from docker.utils import parse_repository_tag

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine import endpoint
from gemmaspec.run.engine.identity import identity
from gemmaspec.run.engine.lines import clean
from gemmaspec.run.engine.server import Node, State

_NEVER: Final = "0001-01-01"
_STATUS: Final[dict[str, Literal["running", "restarting"]]] = {
    "running": "running",
    "paused": "running",
    "restarting": "restarting",
}  # docker's other states are created, removing, exited, dead


def state_of(attributes: dict[str, Any]) -> State:
    """Return the state in a container's inspected attributes."""
    seen = attributes["State"]
    detail = [f"container {attributes['Id'][:12]}"]
    if health := seen.get("Health"):
        detail.append(str(health["Status"]))
    if seen.get("Error"):
        detail.append(clean(str(seen["Error"])))
    if seen["Status"] in ("created", "paused"):
        detail.append(seen["Status"])
    return State(
        status=_STATUS.get(seen["Status"], "exited"),
        exit_code=None if seen["Status"] in ("created", "running", "paused") else int(seen["ExitCode"]),
        restarts=int(attributes.get("RestartCount", 0)),
        detail=", ".join(detail),
        unhealthy=bool(health) and health["Status"] == "unhealthy",
        ended=_ended(seen),
        starved="memory ran out: the kernel has killed a process of its container" if seen.get("OOMKilled") else "",
    )


def _ended(seen: dict[str, Any]) -> float | None:
    stamp = str(seen.get("FinishedAt") or _NEVER)
    return None if seen["Status"] in (*_STATUS, "created") or stamp.startswith(_NEVER) else moment(stamp)


def log_start(seen: dict[str, Any]) -> float | None:
    """Return the time (seconds since 1970) from which lines belong to the last start; None if all of them do.

    Docker records StartedAt late, so the first lines, or the end of a run of milliseconds, may be earlier. While a
    container runs, FinishedAt is the end of the previous run, and the middle between the two is right. After it ended,
    the end of the previous run is unknown; 0.1 s before StartedAt is right then, because docker waits longer than that
    before it restarts a container.
    """
    started, finished = seen["StartedAt"], seen["FinishedAt"]
    if started.startswith(_NEVER) or finished.startswith(_NEVER):
        return None
    if seen["Status"] in _STATUS and seen["Status"] != "restarting":
        return (moment(started) + moment(finished)) / 2
    return min(moment(started), moment(finished)) - 0.1


def moment(stamp: str) -> float:
    """Return docker's time stamp in seconds since 1970."""
    return datetime.fromisoformat(stamp).timestamp()


def publishes(attributes: dict[str, Any], *, bind: str, port: int) -> bool:
    """Return whether a container holds `port` on an address that overlaps `bind`."""
    everywhere = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
    bindings = (attributes.get("HostConfig", {}).get("PortBindings") or {}).values()
    for binding in (binding for several in bindings for binding in several or ()):
        overlaps = bind in everywhere or binding.get("HostIp", "") in (*everywhere, bind)
        if overlaps and binding.get("HostPort") == str(port):
            return True
    return False


def has_nvidia(info: dict[str, Any]) -> bool:
    """Return whether the daemon supports NVIDIA GPUs, with the `nvidia` runtime or a CDI device.

    Docker reports DiscoveredDevices since 28.3. From 25 to 28.2 it reports only the CDI folders, which a local daemon
    shares with this process.
    """
    if "nvidia" in (info.get("Runtimes") or {}):
        return True
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ()]
    specs = (path for folder in info.get("CDISpecDirs") or () for path in Path(folder).glob("*nvidia*"))
    return any(device.startswith("nvidia.com/gpu") for device in devices) or any(specs)


OWN: Final = "gemmaspec/"
"""Images with this prefix are made by tools/cpu_image.py."""
_STDERR: Final = 2

# Phrases of the docker CLI and of registries, in the order of their precedence.
_NO_SPACE: Final = ("no space left on device",)
_DENIED: Final = ("denied", "unauthorized", "authentication required", "no basic auth", "forbidden")
_WRONG_MACHINE: Final = ("no matching manifest", "does not match the specified platform")
_NOT_FOUND: Final = ("manifest unknown", "not found", "name unknown", "repository name not known")
_UNREACHABLE: Final = (
    "no such host", "dial tcp", "i/o timeout", "connection refused", "connection reset", "client.timeout",
    "tls handshake timeout", "network is unreachable", "proxyconnect", "context deadline exceeded", ": eof",
    "certificate", "server gave http response",
)  # fmt: skip


def ensure_image(client: docker.DockerClient, image: str, where: Mapping[str, str]) -> None:
    """Pull `image` unless the daemon has it, with docker's own progress on stderr.

    `where` are the variables by which the docker CLI uses the client's daemon.

    Raise EnvironmentMissing if it is missing, access is denied, the registry is unreachable, the disk is full, or the
    image is for another platform.
    """
    try:
        client.images.get(image)
    except ImageNotFound:
        if missing := not_pulled_here(image):
            raise missing from None
        _pull(image, where)
    except APIError as error:
        raise EnvironmentMissing(
            f"docker rejects the image name {image!r}: {clean(str(error.explanation))}",
            hint="set image to NAME:TAG or NAME@sha256:…",
        ) from None


def not_pulled_here(image: str) -> EnvironmentMissing | None:
    """Return the error for a missing image that is in no registry; None if it may be in one."""
    if image.startswith("sha256:"):
        return EnvironmentMissing(
            f"the image with the id {image} is no longer on this machine and cannot be pulled",
            hint="docker images --no-trunc",
        )
    if image.startswith(OWN):
        return EnvironmentMissing(
            f"the image {image} must be built on this machine, because no registry has it",
            hint="make image    # in a checkout of gemmaspec",
        )
    return None


def _pull(image: str, where: Mapping[str, str]) -> None:
    # `docker pull` writes its progress to stdout, where only data belongs.
    done = subprocess.run(
        ["docker", "pull", "--", image], env=os.environ | dict(where),
        stdin=subprocess.DEVNULL, stdout=_STDERR, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    if done.returncode:
        raise why_not_pulled(image, clean(done.stderr.decode("utf-8", "replace").replace("\n", " ")).strip())


def why_not_pulled(image: str, problem: str) -> EnvironmentMissing:
    """Return the error for the output of `docker pull` on stderr."""
    text = problem.lower().replace(image.lower(), "")  # ignore the phrases in the name itself
    retry = f"docker pull {image}"
    if _any(text, _NO_SPACE):
        return EnvironmentMissing(f"no space left for the image {image}: {problem}", hint="docker system df")
    if _any(text, _DENIED):
        return EnvironmentMissing(
            f"the registry denied access to the image {image}, which is private or does not exist: {problem}",
            hint=f"docker login {_registry(image)}".rstrip(),
        )
    if _any(text, _WRONG_MACHINE):
        return EnvironmentMissing(f"the image {image} does not support this platform: {problem}", hint="uname -m")
    if _any(text, _UNREACHABLE):
        return EnvironmentMissing(f"cannot reach the registry of the image {image}: {problem}", hint=retry)
    if _any(text, _NOT_FOUND):
        return EnvironmentMissing(f"the image {image} is not in its registry: {problem}", hint=retry)
    return EnvironmentMissing(f"cannot pull the image {image}: {problem}", hint=retry)


def _any(text: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in text for phrase in phrases)


def _registry(image: str) -> str:
    """Return the registry of an image name: its first part if that looks like a host; '' for Docker Hub."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else ""


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
    from docker.errors import APIError, DockerException

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


_MANIFEST_S: Final = 60
_LARGEST: Final = 8 * 1024 * 1024
"""Maximum characters of a manifest."""


def pull(image: str, on_bytes: Callable[[int], None]) -> None:
    """Pull an image; docker does not fetch existing layers again and resumes partial ones.

    `on_bytes` is called with the number of new bytes; an exception in it ends the pull. Raise EnvironmentMissing as
    ensure_image does.
    """
    with endpoint.client() as client:
        try:
            if missing := not_pulled_here(image):
                raise missing
            repository, tag = parse_repository_tag(image)
            seen: dict[str, int] = {}
            for event in client.api.pull(repository, tag=tag or "latest", stream=True, decode=True):
                if "error" in event:
                    raise why_not_pulled(image, clean(str(event["error"])))
                on_bytes(_progress(event, seen))
        except APIError as error:
            raise why_not_pulled(image, clean(str(error.explanation))) from None


def is_here(image: str) -> bool:
    """Return whether the daemon has an image."""
    with endpoint.client() as client:
        return identity(client, image) is not None


def download_bytes(image: str, architecture: str) -> int | None:
    """Return the compressed size of an image's layers in bytes; None if the registry does not state it.

    docker's own client asks, with the user's logins. Layers that already exist locally count too.
    """
    command = ["docker", "manifest", "inspect", "--verbose", "--", image]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MANIFEST_S, check=True
        )  # fmt: skip
        return layer_bytes(json.loads(done.stdout[:_LARGEST]), architecture)
    except (OSError, subprocess.SubprocessError, ValueError, RecursionError):
        return None


def layer_bytes(manifests: Any, architecture: str) -> int | None:
    """Return the sum of the layers in the output of `docker manifest inspect --verbose`; None if it is invalid."""
    several = manifests if isinstance(manifests, list) else [manifests]
    for entry in several:
        try:
            platform = entry["Descriptor"].get("platform") or {}
            if len(several) > 1 and platform.get("architecture") != architecture:
                continue
            manifest = entry.get("SchemaV2Manifest") or entry.get("OCIManifest")
            return sum(int(layer["size"]) for layer in manifest["layers"])
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return None


def architecture() -> str:
    """Return the daemon's architecture by Go's name: amd64, arm64."""
    with endpoint.client() as client:
        return str(client.version().get("Arch", ""))


def _progress(event: Mapping[str, Any], seen: dict[str, int]) -> int:
    """Return how many bytes of a layer came since the last event."""
    detail = event.get("progressDetail") or {}
    if event.get("status") != "Downloading" or "current" not in detail:
        return 0
    layer, now = str(event.get("id")), int(detail["current"])
    before = seen.get(layer, 0)
    seen[layer] = max(before, now)
    return seen[layer] - before
