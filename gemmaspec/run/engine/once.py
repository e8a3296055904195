"""A command that runs once in an image and is gone: no network, this user, a few folders of this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import docker.types
import requests
from docker.errors import APIError, NotFound

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine import endpoint
from gemmaspec.run.engine.lines import clean

_LIMIT_S: Final = 1800
_LINES: Final = 200


@dataclass(frozen=True, kw_only=True)
class SharedFolder:
    """A folder of this machine and where the command finds it."""

    folder: Path
    at: str
    read_only: bool = False


def run_once(
    image: str, entrypoint: str, arguments: Sequence[str], mounts: Sequence[SharedFolder], *, gpus: bool = False
) -> tuple[int, list[str]]:
    """Run a command in an image that is on this machine; return its exit code and the last lines of its stderr.

    With `gpus` it sees all of them. The container is removed however this ends, short of kill -9. Raise
    EnvironmentMissing if Docker does not answer, refuses, or has not ended the command within half an hour.
    """
    name = f"gemmaspec-once-{secrets.token_hex(6)}"
    if gpus:
        devices = [docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])]
    else:
        devices = []
    binds = [docker.types.Mount(bind.at, str(bind.folder), type="bind", read_only=bind.read_only) for bind in mounts]
    with endpoint.client() as client:
        try:
            container = client.containers.create(
                image, list(arguments), entrypoint=[entrypoint], name=name, mounts=binds, network_mode="none",
                user=f"{os.getuid()}:{os.getgid()}", device_requests=devices,
            )  # fmt: skip
            container.start()
            code = int(container.wait(timeout=_LIMIT_S)["StatusCode"])
            printed = container.logs(stdout=False, stderr=True, tail=_LINES).decode("utf-8", "replace")
            return code, [clean(line) for line in printed.strip().splitlines()]
        except APIError as error:
            why = clean(str(error.explanation))
            raise EnvironmentMissing(
                f"docker cannot run {image}: {why}", hint=f"docker image inspect {image}"
            ) from None
        except requests.RequestException as error:
            raise EnvironmentMissing(f"docker stopped answering: {clean(str(error))}", hint="docker info") from None
        finally:  # by its name: Ctrl-C may come before docker has answered with an id
            with contextlib.suppress(NotFound, requests.RequestException):
                client.api.remove_container(name, v=True, force=True)
