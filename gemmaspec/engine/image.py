"""The image of a stack: local, or pulled, or the reason why it is missing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Final

import docker
from docker.errors import APIError, ImageNotFound

from gemmaspec.engine.lines import clean
from gemmaspec.errors import EnvironmentMissing

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


def why_not_pulled(image: str, said: str) -> EnvironmentMissing:
    """Return the error for the output of `docker pull` on stderr."""
    text = said.lower().replace(image.lower(), "")  # ignore the phrases in the name itself
    retry = f"docker pull {image}"
    if _any(text, _NO_SPACE):
        return EnvironmentMissing(f"no space left for the image {image}: {said}", hint="docker system df")
    if _any(text, _DENIED):
        return EnvironmentMissing(
            f"the registry denied access to the image {image}, which is private or does not exist: {said}",
            hint=f"docker login {_registry(image)}".rstrip(),
        )
    if _any(text, _WRONG_MACHINE):
        return EnvironmentMissing(f"the image {image} does not support this platform: {said}", hint="uname -m")
    if _any(text, _UNREACHABLE):
        return EnvironmentMissing(f"cannot reach the registry of the image {image}: {said}", hint=retry)
    if _any(text, _NOT_FOUND):
        return EnvironmentMissing(f"the image {image} is not in its registry: {said}", hint=retry)
    return EnvironmentMissing(f"cannot pull the image {image}: {said}", hint=retry)


def _any(text: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in text for phrase in phrases)


def _registry(image: str) -> str:
    """Return the registry of an image name: its first part if that looks like a host; '' for Docker Hub."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else ""
