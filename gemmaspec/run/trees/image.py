"""A container image, read through a container that is created but never started, so that nothing in it runs."""

from __future__ import annotations

import contextlib
import io
import secrets
import struct
import tarfile
import time
from collections.abc import Iterable, Iterator
from typing import Final

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from gemmaspec.core import launcher
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine import endpoint
from gemmaspec.run.engine.lines import clean
from gemmaspec.run.trees.tree import LARGEST_FILE, UNKNOWN, Needed, Tree, TreeSource
from gemmaspec.run.trees.versions import Archive, candidates, find_package, versions_in

LABEL: Final = "gemmaspec.looks-into"
"""The label of every container made here; its value is the time of creation in seconds since 1970."""
_STALE_S: Final = 600


def open_image(ref: str, needed: Needed, *, python: str = "") -> Tree:
    """Read a local image; `python` is the interpreter that would run vLLM, if known.

    Raise EnvironmentMissing without a daemon, for a missing image (it is not pulled), an image without vllm, and a link
    or device in the place of a file.
    """
    where = endpoint.find()
    with endpoint.client(where) as client, answering(where, ref), looking_into(client, ref) as archive:
        config = client.images.get(ref).attrs.get("Config") or {}
        package = find_package(candidates(config, python), archive)
        if package is None:
            raise EnvironmentMissing(
                f"cannot find a vllm package in the image {ref}",
                hint="set container.python in the profile to the interpreter that has vllm",
            )
        version = launcher.stated_version(archive(f"{package}/_version.py") or b"") or UNKNOWN
        files = {path: archive(f"{package}/{path.partition('/')[2]}") for path in needed(version)}
    return Tree(place=TreeSource(kind="image", ref=ref), vllm=version, files=files)


def image_versions(ref: str, *, python: str = "") -> dict[str, str]:
    """Return the versions of `vllm`, `torch` and `transformers` in a local image; `unknown` if not stated.

    `python` is the interpreter that would run vLLM, if known. Raise EnvironmentMissing without a daemon, for a missing
    image, and for an image without vllm.
    """
    where = endpoint.find()
    with endpoint.client(where) as client, answering(where, ref), looking_into(client, ref) as archive:
        config = client.images.get(ref).attrs.get("Config") or {}
        return versions_in(list(candidates(config, python)), archive, f"the image {ref}")


def present(refs: Iterable[str]) -> list[str]:
    """Return the images that are on this machine. Raise EnvironmentMissing if docker does not answer."""
    where = endpoint.find()
    with endpoint.client(where) as client:
        return [ref for ref in refs if _is_here(client, where, ref)]


def _is_here(client: docker.DockerClient, where: endpoint.DockerEndpoint, ref: str) -> bool:
    with answering(where, ref):
        try:
            client.images.get(ref)
        except ImageNotFound:
            return False
    return True


@contextlib.contextmanager
def looking_into(client: docker.DockerClient, ref: str) -> Iterator[Archive]:
    """Yield a reader of the image's files. Its container is always removed at the end, except after kill -9."""
    _remove_stale(client)
    name = f"gemmaspec-look-{secrets.token_hex(6)}"
    try:
        client.api.create_container(
            image=ref, name=name, entrypoint=["/never-run"], command=[], network_disabled=True,
            labels={LABEL: str(int(time.time()))},
        )  # fmt: skip
        yield lambda path: plain_file(client, name, path)
    finally:  # by its name, because Ctrl-C may come before docker answers with an id
        with contextlib.suppress(NotFound):
            client.api.remove_container(name, v=True, force=True)


def plain_file(client: docker.DockerClient, container: str, path: str) -> bytes | None:
    """Return one file of a container. Raise EnvironmentMissing unless it is a regular file."""
    try:
        stream, stat = client.api.get_archive(container, path)
    except NotFound:
        return None
    try:
        if stat.get("linkTarget") or int(stat.get("size", 0)) > LARGEST_FILE:
            raise EnvironmentMissing(f"{path} in the image is a link or larger than {LARGEST_FILE} bytes")
        return only_member(stream, path)
    finally:
        stream.close()  # this ends the transfer


def only_member(stream: Iterable[bytes], path: str) -> bytes | None:
    """Return the only regular file of a tar archive; None for a folder."""
    data = io.BytesIO()
    for chunk in stream:
        data.write(chunk)
        if data.tell() > LARGEST_FILE + 64 * 1024:
            raise EnvironmentMissing(f"{path} in the image is larger than {LARGEST_FILE} bytes")
    data.seek(0)
    try:
        with tarfile.open(fileobj=data, mode="r|") as archive:
            member = archive.next()
            if member is None or member.isdir():
                return None
            if member.isreg():
                content = archive.extractfile(member)
            else:
                content = None
            if content is None:
                raise EnvironmentMissing(f"{path} in the image is not a regular file")
            return content.read()
    except tarfile.TarError as error:
        raise EnvironmentMissing(f"docker sent an unreadable archive of {path}: {error}") from None


def _remove_stale(client: docker.DockerClient) -> None:
    """Remove containers that a killed command left behind."""
    for container in client.api.containers(all=True, filters={"label": LABEL, "status": "created"}):
        if container["Created"] < time.time() - _STALE_S:
            with contextlib.suppress(APIError):
                client.api.remove_container(container["Id"], v=True, force=True)


@contextlib.contextmanager
def answering(where: endpoint.DockerEndpoint, ref: str) -> Iterator[None]:
    """Turn docker's errors into sentences."""
    try:
        yield
    except ImageNotFound:
        raise EnvironmentMissing(
            f"the image {ref} is not on this machine, and this command does not pull images", hint=f"docker pull {ref}"
        ) from None
    except APIError as error:
        why = clean(str(error.explanation))
        raise EnvironmentMissing(f"docker could not open the image {ref}: {why}", hint="docker info") from None
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, struct.error) as error:
        raise EnvironmentMissing(
            f"docker at {where} stopped answering: {clean(str(error))}", hint="docker info"
        ) from None
