"""Have the image of a stack: it is here already, or it is pulled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

import docker
from docker.errors import APIError, ImageNotFound

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine.lines import clean
from gemmaspec.run.engine.pulling import _STDERR, not_pulled_here, why_not_pulled


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


def _pull(image: str, where: Mapping[str, str]) -> None:
    # `docker pull` writes its progress to stdout, where only data belongs.
    done = subprocess.run(
        ["docker", "pull", "--", image], env=os.environ | dict(where),
        stdin=subprocess.DEVNULL, stdout=_STDERR, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    if done.returncode:
        raise why_not_pulled(image, clean(done.stderr.decode("utf-8", "replace").replace("\n", " ")).strip())
