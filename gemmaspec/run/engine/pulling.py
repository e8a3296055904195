"""Pull an image with numeric progress, and say why a pull failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from docker.errors import APIError
from docker.utils import parse_repository_tag

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine import endpoint
from gemmaspec.run.engine.identity import identity
from gemmaspec.run.engine.lines import clean

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
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first
    return ""


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


def registry_digest(image: str) -> str:
    """Return the digest, sha256:…, that an image's name has in its registry now. Pulls nothing.

    The daemon asks, with the user's logins. Raise EnvironmentMissing as `pull` does.
    """
    with endpoint.client() as client:
        if missing := not_pulled_here(image):
            raise missing
        try:
            digest = str(client.images.get_registry_data(image).id)
        except APIError as error:
            raise why_not_pulled(image, clean(str(error.explanation))) from None
    if not _DIGEST.fullmatch(digest):
        raise EnvironmentMissing(
            f"the registry of the image {image} states no digest of it: {clean(digest)[:80]}",
            hint=f"docker pull {image}",
        )
    return digest


_DIGEST: Final = re.compile("sha256:[0-9a-f]{64}")


def is_here(image: str) -> bool:
    """Return whether the daemon has an image."""
    with endpoint.client() as client:
        return identity(client, image) is not None


def _progress(event: Mapping[str, Any], seen: dict[str, int]) -> int:
    """Return how many bytes of a layer came since the last event."""
    detail = event.get("progressDetail") or {}
    if event.get("status") != "Downloading" or "current" not in detail:
        return 0
    layer, now = str(event.get("id")), int(detail["current"])
    before = seen.get(layer, 0)
    seen[layer] = max(before, now)
    return seen[layer] - before
