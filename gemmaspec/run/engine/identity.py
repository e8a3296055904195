"""The image that a name refers to at this moment: its id and, if a registry has it, its digest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine.lines import clean

if TYPE_CHECKING:
    import docker


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A local image."""

    id: str
    """sha256:… of its configuration."""
    digest: str | None
    """sha256:… of its manifest in the name's registry; None if it was built or imported locally."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment that it sets for every container; safe to print."""


def image_identity(ref: str, *, named: str | None = None) -> Identity | None:
    """Return the local image that `ref` names; None if there is none.

    If `ref` is an id, `named` is the name whose repository the digest belongs to. Raise EnvironmentMissing if docker
    does not answer or rejects the name.
    """
    from gemmaspec.run.engine import endpoint

    with endpoint.client() as client:
        return identity(client, ref, named=named)


def identity(client: docker.DockerClient, ref: str, *, named: str | None = None) -> Identity | None:
    """Return the local image that `ref` names, with an open client."""
    from docker.errors import APIError, ImageNotFound

    try:
        attributes = client.images.get(ref).attrs
    except ImageNotFound:
        return None
    except APIError as error:
        raise EnvironmentMissing(
            f"docker rejects the image name {ref!r}: {clean(str(error.explanation))}",
            hint="set image to NAME:TAG or NAME@sha256:…",
        ) from None
    config = attributes.get("Config") or {}
    entries = [clean(str(entry)).partition("=") for entry in config.get("Env") or ()]
    return Identity(
        id=str(attributes["Id"]),
        digest=digest_of(named or ref, attributes.get("RepoDigests") or ()),
        environment={name: value for name, _, value in entries},
    )


def digest_of(ref: str, digests: Iterable[str]) -> str | None:
    """Return the digest in the name's own repository, out of those that docker stores for an image."""
    parted = (entry.partition("@")[::2] for entry in digests)
    return next((digest for repository, digest in parted if repository == repository_of(ref)), None)


def repository_of(ref: str) -> str:
    """Return a name without tag and digest, in docker's short form."""
    name = ref.partition("@")[0]
    first, colon, last = name.rpartition(":")
    name = first if colon and "/" not in last else name
    return name.removeprefix("docker.io/").removeprefix("index.docker.io/").removeprefix("library/")
