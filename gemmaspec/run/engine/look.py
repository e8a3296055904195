"""Ask a machine what only a container of it can say: its interfaces, RDMA devices, cache and disk."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from typing import Final

import docker.types
import requests
from docker.errors import APIError, NotFound

from gemmaspec.core import data
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine import endpoint
from gemmaspec.run.engine.lines import clean

_LIMIT_S: Final = 60
_LARGEST: Final = 256 * 1024


def look(where: endpoint.DockerEndpoint, image: str, *, python: str, models: Sequence[str], cache: str | None) -> str:
    """Return what launcher/look.py prints in a container of `image` that is removed at once.

    It sees the machine's network and, read-only, the folder `cache`. Raise EnvironmentMissing if docker does not
    answer, refuses, or has not ended it within a minute.
    """
    name = f"gemmaspec-look-{secrets.token_hex(6)}"
    if cache:
        mounts = [docker.types.Mount("/cache", cache, type="bind", read_only=True)]
    else:
        mounts = []
    with endpoint.client(where) as client:
        try:
            container = client.containers.create(
                image, ["-c", data.LOOK.read_text(encoding="utf-8"), *models], entrypoint=[python], name=name,
                mounts=mounts, network_mode="host", read_only=True, cap_drop=["ALL"],
                security_opt=["no-new-privileges:true"],
            )  # fmt: skip
            container.start()
            container.wait(timeout=_LIMIT_S)
            printed: bytes = container.logs(stdout=True, stderr=False, tail=1)
            return printed[:_LARGEST].decode("utf-8", "replace")
        except APIError as error:
            raise EnvironmentMissing(f"docker cannot run {image}: {clean(str(error.explanation))}") from None
        except requests.RequestException as error:
            raise EnvironmentMissing(f"a container of {image} did not end: {clean(str(error))}") from None
        finally:  # by its name: Ctrl-C may come before docker has answered with an id
            with contextlib.suppress(NotFound, requests.RequestException):
                client.api.remove_container(name, v=True, force=True)
