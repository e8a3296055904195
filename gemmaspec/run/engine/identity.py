"""The image that a name refers to at this moment: its id and, if a registry has it, its digest.

Several logs as one.

Ask several machines at the same time, each within a bounded time.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
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
    return Identity(
        id=str(attributes["Id"]),
        digest=digest_of(named or ref, attributes.get("RepoDigests") or ()),
        environment=dict(clean(str(entry)).partition("=")[::2] for entry in config.get("Env") or ()),
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


_MOST_WAITING: Final = 1000
"""Lines that a slow reader leaves unread before the logs' own readers wait."""


def merged(logs: Sequence[Callable[[], Iterator[str]]], *, follow: bool) -> Iterator[str]:
    """Yield the lines of each log after those of the one before it; with `follow`, all lines as they come."""
    if not follow:
        for log in logs:
            yield from log()
        return
    lines: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)

    def pump(log: Callable[[], Iterator[str]]) -> None:
        for line in log():
            lines.put(line)
        lines.put(None)

    for log in logs:
        threading.Thread(target=pump, args=(log,), name="gemmaspec-log", daemon=True).start()
    left = len(logs)
    while left:
        line = lines.get()
        if line is None:
            left -= 1
        else:
            yield line


T = TypeVar("T")

_INTERRUPTED_S: Final = 30.0
"""Seconds to wait for calls under way after Ctrl-C, so that none acts after what undoes it."""


def together(calls: Mapping[str, Callable[[], T]], *, seconds: float | None) -> dict[str, T | GemmaspecError]:
    """Return what each call returned or raised, by its name; all are made at the same time, in threads.

    A call that has not returned after `seconds` is abandoned and counts as EnvironmentMissing. None: every call is
    bounded by itself. Raise what a call raises besides GemmaspecError.
    """
    done: dict[str, T | BaseException] = {}

    def run(name: str, call: Callable[[], T]) -> None:
        try:
            done[name] = call()
        except BaseException as error:  # handed to the caller's thread, which raises it
            done[name] = error

    threads = {
        name: threading.Thread(target=run, args=(name, call), name=f"gemmaspec-{name}", daemon=True)
        for name, call in calls.items()
    }
    for thread in threads.values():
        thread.start()
    try:
        _join(threads.values(), seconds)
    except BaseException:
        _join(threads.values(), _INTERRUPTED_S)
        raise
    return {name: _result(name, done, seconds) for name in calls}


def _join(threads: Iterable[threading.Thread], seconds: float | None) -> None:
    deadline = None if seconds is None else time.monotonic() + seconds
    for thread in threads:
        thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))


def _result(name: str, done: Mapping[str, T | BaseException], seconds: float | None) -> T | GemmaspecError:
    if name not in done:
        return EnvironmentMissing(f"no answer within {seconds:.0f} s", hint="docker info")
    outcome = done[name]
    if isinstance(outcome, BaseException) and not isinstance(outcome, GemmaspecError):
        raise outcome
    return outcome
