"""How many bytes a pull of an image downloads, by its manifest."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Final

from gemmaspec.run.engine import endpoint

_MANIFEST_S: Final = 60
_LARGEST: Final = 8 * 1024 * 1024
"""Maximum characters of a manifest."""


def download_bytes(image: str) -> int | None:
    """Return the compressed size of the layers that the daemon would pull, in bytes; None if the registry is silent.

    docker's own client asks, with the user's logins. Layers that already exist locally count too. Raise
    EnvironmentMissing if the daemon does not answer.
    """
    architecture = _architecture()
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
    if isinstance(manifests, list):
        several = manifests
    else:
        several = [manifests]
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


def _architecture() -> str:
    """Return the daemon's architecture by Go's name: amd64, arm64."""
    with endpoint.client() as client:
        return str(client.version().get("Arch", ""))
