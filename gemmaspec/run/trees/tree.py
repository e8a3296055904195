"""A tree: the files of one vllm/ package that patches read, from any place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gemmaspec.core import launcher
from gemmaspec.core.errors import GemmaspecError

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
        if self.kind == "release":
            return f"vllm {self.ref}"
        return f"{self.kind} {self.ref}"


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
