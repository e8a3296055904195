"""The patches of a command: loaded ones, and invalid ones with the reason; and one of them on one tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmaspec.core import data, launcher
from gemmaspec.core.errors import PatchError, UsageError
from gemmaspec.core.patching.decide import PatchVerdict
from gemmaspec.core.patching.patch import Patch, Shelf
from gemmaspec.core.patching.plan import unknown_patch
from gemmaspec.run.trees.tree import TreeSource
from gemmaspec.run.trees.verdicts import Judge, judge


@dataclass(frozen=True, kw_only=True)
class PatchOnTree:
    """One patch on one tree."""

    place: TreeSource
    vllm: str
    verdict: PatchVerdict
    required: bool

    @property
    def breaks(self) -> bool:
        """Whether a server that requires the patch would not start."""
        return self.required and not self.verdict.fits

    @property
    def drifts(self) -> bool:
        """Whether a required patch would be applied to a function that no known release has."""
        return self.required and self.verdict.state == "drifted"


@dataclass(frozen=True, kw_only=True)
class PatchSet:
    """The requested patches; `every` also contains the patches that they need."""

    every: Mapping[str, Patch]
    judges: Mapping[str, Judge]
    refused: Mapping[str, PatchError]

    def needed_paths(self, version: str) -> frozenset[str]:
        """Return the files of a tree that deciding all of them would read."""
        return frozenset().union(*(judge.needed_paths(version) for judge in self.judges.values()))

    def claimed(self, releases: Iterable[str]) -> Iterator[str]:
        """Yield the published releases that are in the range of one of them."""
        for release in releases:
            if launcher.PUBLISHED_RELEASE.fullmatch(release) and self._claims(release):
                yield release

    def _claims(self, version: str) -> bool:
        for wanted in self.judges.values():
            variants = wanted.patches[-1].variants
            if any(launcher.range_contains(variant.specifier, version) for variant in variants):
                return True
        return False


def load_set(names: Sequence[str], folders: Sequence[Path] = ()) -> PatchSet:
    """Return the named patches of the folders, or all; default: the shipped and the user's own folders.

    Raise UsageError for a missing folder or an unknown patch.
    """
    known = _found(folders or data.patch_folders())
    for name in names:
        if name not in known:
            raise UsageError(unknown_patch(name, known), hint="gemmaspec patch list")
    good = {name: patch for name, patch in known.items() if isinstance(patch, Patch)}
    refused = {name: error for name, error in known.items() if isinstance(error, PatchError)}
    judges: dict[str, Judge] = {}
    for name in names or sorted(known):
        try:
            if name in good:
                judges[name] = judge(good[name], good)
        except PatchError as error:
            refused[name] = error
    asked_for = names or known
    wanted = {name: error for name, error in sorted(refused.items()) if name in asked_for}
    return PatchSet(every=good, judges=judges, refused=wanted)


def _found(folders: Sequence[Path]) -> dict[str, Patch | PatchError]:
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"the patch folder {folder} does not exist")
    shelf = Shelf(folders)
    return {name: _load(shelf, name) for name in shelf}


def _load(shelf: Shelf, name: str) -> Patch | PatchError:
    try:
        return shelf[name]
    except PatchError as error:
        return error
