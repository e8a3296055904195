"""Which image a name means right now: its id and, if a registry has it, its digest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gemmaspec.engine.lines import clean
from gemmaspec.errors import EnvironmentMissing

if TYPE_CHECKING:  # the SDK is slow to import, and most commands that can ask Docker do not
    import docker


@dataclass(frozen=True, kw_only=True)
class Identity:
    """An image that the daemon has."""

    id: str
    """sha256:… of its configuration."""
    digest: str | None
    """sha256:… of its manifest in the registry that the name means; None when it was built or imported here."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What it sets for every container; fit to be printed."""


def image_identity(ref: str, *, named: str | None = None) -> Identity | None:
    """The image that `ref` names on the daemon; None when it has none of that name.

    Where `ref` is an id, `named` is the name whose repository the digest is of.

    Raises EnvironmentMissing when docker does not answer, or does not take this for a name.
    """
    from gemmaspec.engine import endpoint

    with endpoint.client() as client:
        return identity(client, ref, named=named)


def identity(client: docker.DockerClient, ref: str, *, named: str | None = None) -> Identity | None:
    """The same by a client that is at hand."""
    from docker.errors import APIError, ImageNotFound

    try:
        attributes = client.images.get(ref).attrs
    except ImageNotFound:
        return None
    except APIError as error:
        raise EnvironmentMissing(
            f"{ref!r} is not an image name docker accepts: {clean(str(error.explanation))}",
            hint="set image to NAME:TAG or NAME@sha256:…",
        ) from None
    config = attributes.get("Config") or {}
    return Identity(
        id=str(attributes["Id"]),
        digest=digest_of(named or ref, attributes.get("RepoDigests") or ()),
        environment=dict(clean(str(entry)).partition("=")[::2] for entry in config.get("Env") or ()),
    )


def digest_of(ref: str, digests: Iterable[str]) -> str | None:
    """The digest under the name's own repository, of those that docker keeps for an image."""
    found = (entry.partition("@")[::2] for entry in digests)
    return next((digest for repository, digest in found if repository == repository_of(ref)), None)


def repository_of(ref: str) -> str:
    """A name without tag and digest, in the short form that docker shows."""
    name = ref.partition("@")[0]
    first, colon, last = name.rpartition(":")
    name = first if colon and "/" not in last else name
    return name.removeprefix("docker.io/").removeprefix("index.docker.io/").removeprefix("library/")
