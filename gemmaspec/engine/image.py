"""The image of a stack: there already, or pulled, or the reason why not."""

from __future__ import annotations

import subprocess
from typing import Final

import docker
from docker.errors import APIError, ImageNotFound

from gemmaspec.engine.lines import clean
from gemmaspec.errors import EnvironmentMissing

OWN: Final = "gemmaspec/"
"""Images with this prefix are made by tools/cpu_image.py."""
_STDERR: Final = 2

# Phrases of the docker CLI and of registries, in the order in which they decide.
_NO_SPACE: Final = ("no space left on device",)
_DENIED: Final = ("denied", "unauthorized", "authentication required", "no basic auth", "forbidden")
_WRONG_MACHINE: Final = ("no matching manifest", "does not match the specified platform")
_NOT_FOUND: Final = ("manifest unknown", "not found", "name unknown", "repository name not known")
_UNREACHABLE: Final = (
    "no such host", "dial tcp", "i/o timeout", "connection refused", "connection reset", "client.timeout",
    "tls handshake timeout", "network is unreachable", "proxyconnect", "context deadline exceeded", ": eof",
    "certificate", "server gave http response",
)  # fmt: skip


def ensure_image(client: docker.DockerClient, image: str) -> None:
    """Pull `image` unless the daemon has it; the progress is docker's own, on stderr.

    Raise EnvironmentMissing: not found, access denied, registry unreachable, disk full, wrong machine.
    """
    try:
        client.images.get(image)
    except ImageNotFound:
        if missing := not_pulled_here(image):
            raise missing from None
        _pull(image)
    except APIError as error:
        raise EnvironmentMissing(
            f"{image!r} is not an image name docker accepts: {clean(str(error.explanation))}",
            hint="set image to NAME:TAG or NAME@sha256:…",
        ) from None


def not_pulled_here(image: str) -> EnvironmentMissing | None:
    """Return why a missing image is in no registry, and so cannot be pulled; None when it may be."""
    if image.startswith("sha256:"):
        return EnvironmentMissing(
            f"the image with the id {image} is no longer on this machine, and in no registry that is known",
            hint="docker images --no-trunc",
        )
    if image.startswith(OWN):
        return EnvironmentMissing(
            f"the image {image} is built on this machine, in no registry, and has not been built yet",
            hint="make image    # in a checkout of gemmaspec",
        )
    return None


def _pull(image: str) -> None:
    # `docker pull` writes its progress to stdout, where only data belongs.
    done = subprocess.run(
        ["docker", "pull", "--", image],
        stdin=subprocess.DEVNULL, stdout=_STDERR, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    if done.returncode:
        raise why_not_pulled(image, clean(done.stderr.decode("utf-8", "replace").replace("\n", " ")).strip())


def why_not_pulled(image: str, said: str) -> EnvironmentMissing:
    """Return the reason in what `docker pull` said on stderr."""
    text = said.lower().replace(image.lower(), "")  # a name must not decide
    retry = f"docker pull {image}"
    if _any(text, _NO_SPACE):
        return EnvironmentMissing(f"no space left for the image {image}: {said}", hint="docker system df")
    if _any(text, _DENIED):
        return EnvironmentMissing(
            f"the registry refused access to the image {image} (private, or it does not exist): {said}",
            hint=f"docker login {_registry(image)}".rstrip(),
        )
    if _any(text, _WRONG_MACHINE):
        return EnvironmentMissing(f"the image {image} is not made for this machine: {said}", hint="uname -m")
    if _any(text, _UNREACHABLE):
        return EnvironmentMissing(f"the registry of the image {image} cannot be reached: {said}", hint=retry)
    if _any(text, _NOT_FOUND):
        return EnvironmentMissing(f"the image {image} was not found in its registry: {said}", hint=retry)
    return EnvironmentMissing(f"the image {image} cannot be pulled: {said}", hint=retry)


def _any(text: str, phrases: tuple[str, ...]) -> bool:
    return any(phrase in text for phrase in phrases)


def _registry(image: str) -> str:
    """Return the registry of an image name: its first part when that looks like a host; '' for Docker Hub."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else ""
