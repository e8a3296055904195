"""Released wheels: only the needed files are read, with range requests, and cached by the wheel's sha256."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.files import cache_dir, keep, kept

if TYPE_CHECKING:
    import requests
    from pypi_simple import DistributionPackage
from gemmaspec.run.trees.listing import PROJECT, Listing
from gemmaspec.run.trees.tree import Needed, Tree, TreeSource, Unreadable

THREADS: Final = 8
_ABSENT: Final = ".absent"
"""Suffix of the marker for a file that a wheel lacks."""


class Releases:
    """Opens released wheels and counts the transferred bytes."""

    def __init__(self, listing: Listing, *, threads: int = THREADS) -> None:
        self._threads = threads
        self._listing = listing
        self._sizes: dict[str, int] = {}
        self._received: list[int] = []

    @property
    def bytes_received(self) -> int:
        """Bytes of wheels received over the network."""
        return sum(self._received)

    @property
    def bytes_of_wheels(self) -> int:
        """The total size of these wheels."""
        return sum(self._sizes.values())

    def open(self, versions: Sequence[str], needed: Needed) -> Iterator[Tree | Unreadable]:
        """Yield the trees of some releases, cached ones first; an unreadable one has the reason."""
        missing: dict[str, list[str]] = {}
        for version in versions:
            paths = sorted(needed(version))
            cached = self._cached(version, paths)
            if len(cached) < len(paths):
                missing[version] = paths
            else:
                yield _tree(version, cached)
        if missing:
            yield from self._from_index(missing)

    def _from_index(self, wanted: Mapping[str, Sequence[str]]) -> Iterator[Tree | Unreadable]:
        from gemmaspec.run.index import wheels as index

        try:
            wheels = index.released_wheels(PROJECT)
        except EnvironmentMissing as error:
            yield from (_unreadable(version, error) for version in wanted)
            return
        todo: queue.SimpleQueue[str] = queue.SimpleQueue()
        done: queue.SimpleQueue[Tree | Unreadable | Exception] = queue.SimpleQueue()
        for version in wanted:
            todo.put(version)
        for _ in range(min(self._threads, len(wanted))):
            work = (todo, done, wanted, wheels)
            threading.Thread(
                target=self._work, args=work, daemon=True
            ).start()  # daemons, so that Ctrl-C does not wait for them
        try:
            for _ in wanted:
                result = done.get()
                if isinstance(result, Exception):
                    raise result
                yield result
        finally:
            _drain(todo)

    def _work(
        self,
        todo: queue.SimpleQueue[str],
        done: queue.SimpleQueue[Tree | Unreadable | Exception],
        wanted: Mapping[str, Sequence[str]],
        wheels: Mapping[str, DistributionPackage],
    ) -> None:
        from gemmaspec.run.index import wheels as index

        with index.open_session() as session:
            session.hooks["response"].append(self._count)
            while True:
                try:
                    version = todo.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put(_tree(version, self._fetch(version, wanted[version], wheels.get(version), session)))
                except GemmaspecError as error:
                    done.put(_unreadable(version, error))
                except Exception as error:  # a bug must reach the waiting thread
                    done.put(error)

    def _fetch(
        self,
        version: str,
        paths: Sequence[str],
        wheel: DistributionPackage | None,
        session: requests.Session,
    ) -> dict[str, bytes | None]:
        from gemmaspec.run.index import wheels as index

        if wheel is None or wheel.digests.get("sha256", "") != self._listing.wheels[version]:
            raise EnvironmentMissing(
                f"the wheel of vllm {version} changed since the releases were listed",
                hint="gemmaspec patch verify --refresh",
            )
        contents = self._cached(version, paths)
        missing = [path for path in paths if path not in contents]
        members = index.read_members(wheel, missing, session)
        folder = self._folder(version)
        for path in missing:
            content = members.get(path)
            contents[path] = content
            if folder:
                keep(folder / (path if content is not None else path + _ABSENT), content or b"")
        return contents

    def _cached(self, version: str, paths: Sequence[str]) -> dict[str, bytes | None]:
        folder = self._folder(version)
        if folder is None:
            return {}
        contents = {path: kept(folder / path) for path in paths}
        absent = [path for path, content in contents.items() if content is None]
        gone = {path for path in absent if not (folder / (path + _ABSENT)).exists()}
        return {path: content for path, content in contents.items() if path not in gone}

    def _folder(self, version: str) -> Path | None:
        sha256 = self._listing.wheels.get(version, "")
        if re.fullmatch("[0-9a-f]{64}", sha256):
            return cache_dir() / "wheels" / sha256
        return None

    def _count(self, response: requests.Response, **_options: Any) -> None:
        self._received.append(int(response.headers.get("Content-Length", 0)))
        _, slash, total = response.headers.get("Content-Range", "").rpartition("/")
        if slash and total.isdigit():
            self._sizes[response.url] = int(total)


def _drain(todo: queue.SimpleQueue[str]) -> None:
    while not todo.empty():
        try:
            todo.get_nowait()
        except queue.Empty:
            return


def _tree(version: str, files: Mapping[str, bytes | None]) -> Tree:
    return Tree(place=TreeSource(kind="release", ref=version), vllm=version, files=files)


def _unreadable(version: str, error: GemmaspecError) -> Unreadable:
    return Unreadable(place=TreeSource(kind="release", ref=version), error=error)
