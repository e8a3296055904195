"""Pull an image with numeric progress, and find the size of the download."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, Final

from docker.errors import APIError
from docker.utils import parse_repository_tag

from gemmaspec.engine import endpoint
from gemmaspec.engine.identity import identity
from gemmaspec.engine.image import not_pulled_here, why_not_pulled
from gemmaspec.engine.lines import clean

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


def layer_bytes(found: Any, architecture: str) -> int | None:
    """Return the sum of the layers in the output of `docker manifest inspect --verbose`; None if it is invalid."""
    several = found if isinstance(found, list) else [found]
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
