"""A tree: the files of one vllm/ package that patches read, from any place.

The releases of vLLM and the sha256 of each wheel: queried once a day, and cached for use offline.

A folder that contains vllm/: a checkout, an unpacked wheel, a site-packages.

Released wheels: only the needed files are read, with range requests, and cached by the wheel's sha256.
"""

from __future__ import annotations

import json
import os
import queue
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from gemmaspec.core import launcher
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.files import cache_dir, keep, kept

if TYPE_CHECKING:
    import requests
    from pypi_simple import DistributionPackage


Kind = Literal["release", "image", "tree", "running"]
Needed = Callable[[str], Iterable[str]]
"""From a version of vLLM to the needed files, as vllm/….py."""

LARGEST_FILE: Final = launcher.FILE_LIMIT
"""Maximum bytes of a file, the same as at a start."""
UNKNOWN: Final = "unknown"
"""The version of a vLLM that states none."""


@dataclass(frozen=True, kw_only=True)
class TreeSource:
    """Where a tree is: a release number, an image, a folder, or the name of a started stack."""

    kind: Kind
    ref: str

    def __str__(self) -> str:
        return f"vllm {self.ref}" if self.kind == "release" else f"{self.kind} {self.ref}"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The version and the requested files; None for a file that the package lacks."""

    place: TreeSource
    vllm: str
    files: Mapping[str, bytes | None]

    def read(self, path: str) -> bytes | None:
        """Return one of the requested files. Raise KeyError for any other, because it was not read and may exist."""
        return self.files[path]


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A tree that could not be read, and the reason."""

    place: TreeSource
    error: GemmaspecError


PROJECT: Final = "vllm"
FRESH_S: Final = 24 * 3600
"""Seconds for which an answer of the package index stays fresh."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The releases that have a wheel; `note` explains an outdated listing."""

    wheels: Mapping[str, str]
    """Release -> sha256 of its wheel, "" if the index states none."""
    note: str = ""

    def releases(self) -> Sequence[str]:
        """Return all releases from the oldest to the newest, including pre-releases."""
        return sorted((name for name in self.wheels if _version(name)), key=Version)


def published(*, refresh: bool = False) -> Listing:
    """Return the listing: from the cache while fresh, else from the package index, else from the cache with a note.

    Raise EnvironmentMissing if the index does not answer and nothing is cached.
    """
    asked, wheels = _kept()
    if wheels and not refresh and 0 <= time.time() - asked < FRESH_S:
        return Listing(wheels=wheels)
    try:
        return Listing(wheels=_ask())
    except EnvironmentMissing as error:
        if not wheels:
            raise
        day = time.strftime("%Y-%m-%d", time.gmtime(asked))
        return Listing(wheels=wheels, note=f"{error.message}; using the releases known on {day}")


def choose(texts: Sequence[str], listing: Listing) -> tuple[Listing, list[str]]:
    """Return the releases that `--release` values mean: 0.26.0, 0.24.0..0.27.1 (both included), ">=0.24,<0.27".

    The index is queried again if the listing lacks one, as on the day of a release. Raise UsageError for other text,
    EnvironmentMissing for a missing release.
    """
    missing = [text for text in texts if not select(text, listing)]
    if missing and not listing.note:
        listing = published(refresh=True)
        missing = [text for text in texts if not select(text, listing)]
    if missing:
        newest = listing.releases()[-1] if listing.wheels else "none"
        note = f" ({listing.note})" if listing.note else ""
        raise EnvironmentMissing(
            f"vllm {' or '.join(missing)} has no released wheel; the newest is {newest}{note}",
            hint="pip index versions vllm    # gemmaspec uses pip's settings",
        )
    chosen = {release for text in texts for release in select(text, listing)}
    return listing, sorted(chosen, key=Version)


def select(text: str, listing: Listing) -> list[str]:
    """Return the releases of a listing that one `--release` value means."""
    first, dots, last = text.partition("..")
    try:
        if dots:
            bounds = SpecifierSet(f">={Version(first)},<={Version(last)}")
        elif text.startswith(("<", ">", "=", "!", "~")):
            bounds = SpecifierSet(text)
        else:
            return [release for release in listing.releases() if Version(release) == Version(text)]
    except (InvalidVersion, InvalidSpecifier):
        raise UsageError(
            f"--release {text!r} must be like 0.26.0, 0.24.0..0.27.1 or '>=0.24,<0.27'",
            hint="--tree DIR    # for a checkout",
        ) from None
    return list(bounds.filter(listing.releases()))


def _ask() -> dict[str, str]:
    from gemmaspec.run.index import wheels as index

    wheels = index.released_wheels(PROJECT)
    sums = {version: file.digests.get("sha256", "") for version, file in wheels.items()}
    keep(
        cache_dir() / "releases" / f"{PROJECT}.json",
        json.dumps({"asked": int(time.time()), "wheels": sums}).encode(),
    )
    return sums


def _kept() -> tuple[int, dict[str, str]]:
    """Return the time of the cached answer (seconds since 1970) and its content; (0, empty) without a valid one."""
    try:
        stored = json.loads(kept(cache_dir() / "releases" / f"{PROJECT}.json") or b"{}")
        return int(stored["asked"]), {str(name): str(sha256) for name, sha256 in stored["wheels"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0, {}


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def open_folder(folder: Path, needed: Needed) -> Tree:
    """Read a folder. Raise EnvironmentMissing if vllm/ is missing, a link leaves it, or a file is not a regular one."""
    package = package_in(folder)
    version = launcher.vllm_version(package)
    files = {path: read_inside(folder, path) for path in needed(version)}
    return Tree(place=TreeSource(kind="tree", ref=str(folder)), vllm=version, files=files)


def package_in(folder: Path) -> Path:
    """Return the absolute path of the folder's vllm/."""
    package = folder.absolute() / "vllm"
    if not (package / "__init__.py").is_file():
        nested = (folder / "__init__.py").is_file() and folder.absolute().name == "vllm"
        raise EnvironmentMissing(
            f"{folder} does not contain a vllm/ package",
            hint=f"name its parent folder: {folder.absolute().parent}" if nested else f"ls {folder}",
        )
    resolve_inside(folder, "vllm")
    return package


def read_inside(folder: Path, path: str) -> bytes | None:
    """Return a regular file below a folder; None if it is missing."""
    real = resolve_inside(folder, path)
    try:
        status = real.stat()
        if stat.S_ISDIR(status.st_mode):
            return None
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
            raise EnvironmentMissing(f"{folder / path} must be a regular file of at most {LARGEST_FILE} bytes")
        return real.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EnvironmentMissing(f"cannot read {folder / path}: {error.strerror}") from None


def resolve_inside(folder: Path, path: str) -> Path:
    """Return the real path of a path below a folder. Raise EnvironmentMissing if it leaves the folder.

    The files of a vllm/ may all be links into one other folder of that name, as uv makes them into its cache.
    """
    root = os.path.realpath(folder)
    real = os.path.realpath(folder / path)
    linked = Path(os.path.realpath(folder / "vllm/__init__.py")).parent.parent
    beside = os.path.realpath((folder / path).parent)
    is_cached = Path(real) == linked / path and os.path.commonpath([root, beside]) == root
    if os.path.commonpath([root, real]) != root and not is_cached:
        raise EnvironmentMissing(f"{folder / path} is a link that leaves {folder}, to {real}")
    return Path(real)


THREADS: Final = 8
_ABSENT: Final = ".absent"
"""Suffix of the marker for a file that a wheel lacks."""


class Releases:
    """Opens released wheels and counts the transferred bytes."""

    def __init__(self, listing: Listing) -> None:
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
        for _ in range(min(THREADS, len(wanted))):
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
        return cache_dir() / "wheels" / sha256 if re.fullmatch("[0-9a-f]{64}", sha256) else None

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
