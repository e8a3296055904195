"""One vllm/ package with access to any file and to all names. Unlike this, a tree has only the requested files."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gemmaspec.core import launcher
from gemmaspec.core.errors import UsageError
from gemmaspec.run.trees import listing as listing_of
from gemmaspec.run.trees.folder import open_folder, package_in
from gemmaspec.run.trees.listing import PROJECT, Listing
from gemmaspec.run.trees.released import Releases
from gemmaspec.run.trees.tree import TreeSource, Unreadable

_AT_ONCE = 200
"""Number of files to read between progress messages."""


class Reader(Protocol):
    """A vllm/ package."""

    @property
    def place(self) -> TreeSource:
        """The place of the package."""

    @property
    def vllm(self) -> str:
        """The version of the package."""

    def files(self, paths: Iterable[str]) -> Mapping[str, bytes | None]:
        """Return some files, as vllm/….py; None for a missing one. Raise EnvironmentMissing for an unreadable one."""

    def names(self) -> Sequence[str]:
        """Return every .py file of vllm/."""


class FolderReader:
    """A folder that contains vllm/."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = TreeSource(kind="tree", ref=str(folder))
        self.vllm = launcher.vllm_version(package_in(folder))

    def files(self, paths: Iterable[str]) -> Mapping[str, bytes | None]:
        """Read the files again, without a cache."""
        return open_folder(self._folder, lambda _: paths).files

    def names(self) -> Sequence[str]:
        """Return the names without following links to folders."""
        paths = (
            os.path.relpath(Path(folder) / file, self._folder)
            for folder, _, files in os.walk(self._folder / "vllm")
            for file in files
        )
        return sorted(path for path in paths if is_source(path))


class ReleaseReader:
    """A released wheel, of which only the requested members are read."""

    def __init__(self, version: str, listing: Listing) -> None:
        self._listing = listing
        self.place = TreeSource(kind="release", ref=version)
        self.vllm = version

    def files(self, paths: Iterable[str]) -> Mapping[str, bytes | None]:
        """Read the files from the cache, or with range requests."""
        wanted = sorted(set(paths))
        (tree,) = Releases(self._listing).open([self.vllm], lambda _: wanted)
        if isinstance(tree, Unreadable):
            raise tree.error
        return tree.files

    def names(self) -> Sequence[str]:
        """Return the names in the wheel's directory."""
        from gemmaspec.run.index import wheels

        return sorted(
            path for path in wheels.member_names(wheels.released_wheels(PROJECT)[self.vllm]) if is_source(path)
        )


def open_reader(release: str | None, tree: Path | None, listing: Callable[[], Listing]) -> Reader:
    """Return the vLLM that `--to`, `--release` or `--tree` names. Raise UsageError unless there is exactly one."""
    if tree and not release:
        return FolderReader(tree)
    if tree or not release:
        raise UsageError("name one vLLM: a release, or --tree DIR")
    listed, chosen = listing_of.choose([release], listing())
    if len(chosen) != 1:
        raise UsageError(f"name one release; {release!r} means {len(chosen)}")
    return ReleaseReader(chosen[0], listed)


def is_source(path: str) -> bool:
    """Return whether a path is a .py file inside vllm/."""
    try:
        launcher.check_path(path)
    except ValueError:
        return False
    return True


def find_scope(
    reader: Reader, scope: str, near: str, say: Callable[[str], None] = lambda _: None
) -> Mapping[str, bytes]:
    """Return the files that define a function or class, in the folder closest to `near`; empty if there are none."""
    for files in rings(reader, near, say):
        defining = {path: data for path, data in files.items() if defines(data, scope)}
        if defining:
            return defining
    return {}


def rings(reader: Reader, near: str, say: Callable[[str], None]) -> Iterator[Mapping[str, bytes]]:
    """Yield all files except `near`, from the closest folder to the farthest; `say` reports the progress."""
    names = [path for path in reader.names() if path != near]
    distance = functools.partial(_distance, near)
    for ring in sorted({distance(path) for path in names}):
        wanted = [path for path in names if distance(path) == ring]
        folder = Path(near).parents[ring]
        contents: dict[str, bytes] = {}
        for begin in range(0, len(wanted), _AT_ONCE):
            say(f"reading {folder}/: files {begin + 1} to {min(begin + _AT_ONCE, len(wanted))} of {len(wanted)}")
            part = reader.files(wanted[begin : begin + _AT_ONCE])
            contents |= {path: data for path, data in part.items() if data}
        yield contents


def defines(data: bytes, scope: str) -> bool:
    """Return whether a file defines a function or class of this qualified name."""
    if scope.rpartition(".")[2].encode() not in data:
        return False
    try:
        return bool(launcher.definitions(launcher.without_warnings(ast.parse, data), scope))
    except launcher.NOT_PYTHON:
        return False


def _distance(near: str, path: str) -> int:
    """Return how many folders the common folder of both files is above the first one."""
    folder = Path(near).parent
    return next(up for up, parent in enumerate([folder, *folder.parents]) if Path(path).is_relative_to(parent))
