"""A tree: the files of one vllm/ package that patches look at, wherever it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gemmaspec import launcher
from gemmaspec.errors import GemmaspecError

Kind = Literal["release", "image", "tree", "running"]
Needed = Callable[[str], Iterable[str]]
"""From a version of vLLM to the files that are wanted of it, as vllm/….py."""

LARGEST_FILE: Final = launcher.FILE_LIMIT
"""Bytes: what a start reads too."""
UNKNOWN: Final = "unknown"
"""The version of a vLLM that does not state one."""


@dataclass(frozen=True, kw_only=True)
class TreeSource:
    """Where a tree is: a release number, an image, a folder, or the name of a started stack."""

    kind: Kind
    ref: str

    def __str__(self) -> str:
        return f"vllm {self.ref}" if self.kind == "release" else f"{self.kind} {self.ref}"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """What was read: the version, and the wanted files; None for one that the package does not have."""

    place: TreeSource
    vllm: str
    files: Mapping[str, bytes | None]

    def read(self, path: str) -> bytes | None:
        """One of the wanted files. KeyError for another: it was not looked for, which is not "missing"."""
        return self.files[path]


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A tree that could not be read, and why."""

    place: TreeSource
    error: GemmaspecError
