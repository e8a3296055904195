"""Three-way merges of a patch, from a release that it fits to a vLLM that it does not fit, even if the code moved.

`base` is the file of the release, `ours` the same file patched, `theirs` the file of the new vLLM. The unit of a merge
is the function or class of a hunk, or the whole file for a hunk without one.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.check.carry.newvariant import Say, plain
from gemmaspec.check.carry.rebase_state import CarriedFile, Merge
from gemmaspec.core import launcher
from gemmaspec.core.errors import EnvironmentMissing, PatchConflict
from gemmaspec.core.patching import decide as deciding
from gemmaspec.core.patching.patch import Patch
from gemmaspec.run.trees.listing import Listing
from gemmaspec.run.trees.reader import Reader, ReleaseReader, defines, find_scope, rings
from gemmaspec.run.trees.successors import successors
from gemmaspec.run.trees.verdicts import Judge

_MOST_CONFLICTS: Final = 127
"""`git merge-file` exits with the number of conflicts up to this limit; a larger code is a failure of git."""
_ALIKE: Final = 0.5
"""Minimum similarity to identify a moved function among several of the same name; 1 means identical."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """A release that the patch applies to: its files, and those of the fitting variant before and after."""

    version: str
    edits: tuple[launcher.FileEdit, ...]
    before: Mapping[str, bytes]
    after: Mapping[str, bytes]


def find_base(judge: Judge, patch: Patch, vllm: str, listed: Listing) -> Base:
    """Return the nearest older release that the patch applies to, else the nearest newer one.

    Raise EnvironmentMissing if there is none.
    """
    for version in _nearest_first(patch, vllm, listed):
        files = ReleaseReader(version, listed).files(judge.needed_paths(version))
        results, changed = launcher.decide_plan(
            launcher.Plan(1, "", "", (), judge.patches, ""), version, files.__getitem__
        )
        if results[-1].state in ("applies", "drifted"):
            result = results[-1]
            variant = next(made for made in judge.patches[-1].variants if made.name == result.variant)
            before = {file.path: file.before for file in result.files if file.before is not None}
            return Base(version=version, edits=variant.files, before=before, after=changed)
    raise EnvironmentMissing(
        f"{patch.id}: applies to no published vllm release; there is no merge base",
        hint=f"gemmaspec patch verify {patch.id}",
    )


def _nearest_first(patch: Patch, vllm: str, listed: Listing) -> list[str]:
    """Return the other published releases in the patch's ranges: older ones, then newer ones, nearest first."""
    published = filter(launcher.PUBLISHED_RELEASE.fullmatch, listed.releases())
    claimed = [version for version in published if version != vllm and patch.claims(version)]
    number = re.match(launcher.VERSION_NUMBER, vllm)
    if not number:
        return claimed[::-1]
    top = launcher.release_key(number[0])
    below = [version for version in claimed if launcher.release_key(plain(version)) <= top]
    return [*reversed(below), *(version for version in claimed if version not in below)]


def merges(
    judge: Judge, patch: Patch, base: Base, target: Reader, say: Say = lambda _: None, successor: str = ""
) -> list[Merge]:
    """Return the patch merged into each file of a vLLM, including conflicts; the nearest release is `base`.

    `successor` is the new place of a renamed function, as vllm/….py:Class.name. Raise PatchConflict if code is missing
    or in several places, EnvironmentMissing without git.
    """
    return list(_Merger(judge, patch, base, target, say, successor).merges())


class _Merger:
    """Merges the files of a patch, one function or class at a time."""

    def __init__(self, judge: Judge, patch: Patch, base: Base, target: Reader, say: Say, successor: str) -> None:
        self._needs = judge.patches[:-1]
        self._patch, self._successor = patch.id, successor
        self._base, self._target, self._say = base, target, say
        self._labels = f"patch {patch.id}", f"vllm {base.version}", str(target.place)

    def merges(self) -> Iterator[Merge]:
        """Yield each file of the new vLLM that the patch edits. Raise PatchConflict for missing code."""
        homes: dict[str, dict[str, dict[str, str]]] = {}
        for edit in self._base.edits:
            for scope in _outermost(hunk.function for hunk in edit.hunks):
                home, name = self._home(edit.path, scope)
                homes.setdefault(home, {}).setdefault(edit.path, {})[scope] = name
        theirs = self._patched_by_needs(homes)
        for path, sources in homes.items():
            if len(sources) > 1:
                raise PatchConflict(f"{' and '.join(sources)} were merged into one file, {path}", hint=self._by_hand())
            (source, scopes), *_ = sources.items()
            yield self._merged(path, source, scopes, theirs[path])

    def _merged(self, path: str, source: str, scopes: Mapping[str, str], theirs: bytes) -> Merge:
        """Return the merge of one file; `scopes` maps old names to new ones."""
        base, ours = self._base.before[source], self._base.after[source]
        single = _are_single(base, scopes) and _are_single(ours, scopes) and _are_single(theirs, scopes.values())
        whole = "" in scopes or not single
        if whole and path != source:
            raise PatchConflict(f"{source}: its code is now in {path}, more than once", hint=self._by_hand())
        merged, conflicts = theirs, 0
        for scope, name in [("", "")] if whole else sorted(scopes.items()):
            sides = [_cut(base, scope), _cut(ours, scope), _cut(theirs, name)]
            done = merge(base=sides[0], ours=sides[1], theirs=sides[2], labels=self._labels)
            conflicts += done.conflicts
            if whole:
                merged = done.data
            else:
                merged = merged.replace(sides[2], done.data, 1)
        file = CarriedFile(path=path, source=source, conflicts=conflicts, theirs=launcher.sha256(theirs))
        return Merge(file=file, base=base, ours=ours, theirs=theirs, merged=merged)

    def _home(self, path: str, scope: str) -> tuple[str, str]:
        """Return the file that now contains the scope, and its name there."""
        data = self._target.files([path])[path]
        if data is not None and (not scope or defines(data, scope)):
            return path, scope
        if not scope:
            raise PatchConflict(f"{path} is missing in {self._target.place}", hint=self._by_hand())
        self._say(f"{path}: {scope} is missing; searching {self._target.place}")
        if self._successor:
            home, _, name = self._successor.partition(":")
            if name:
                found_there = self._target.files([home])[home]
            else:
                found_there = None
            if found_there is None or not defines(found_there, name):
                raise PatchConflict(f"{home} of {self._target.place} does not define {name or 'a function'}")
            self._say(f"{scope} is now {name} in {home}, as given by --successor")
            return home, name
        defining = find_scope(self._target, scope, path, self._say)
        if not defining:
            raise self._renamed(path, scope)
        home = self._most_alike(defining, path, scope)
        self._say(f"{scope} is now in {home}")
        return home, scope

    def _renamed(self, path: str, scope: str) -> PatchConflict:
        """Return the error for a name that no longer exists, with the functions that have similar code."""
        base, here = self._base.before[path], self._target.files([path])
        files = [{name: data for name, data in here.items() if data}, *rings(self._target, path, lambda _: None)]
        message = f"{self._target.place} no longer defines {scope}, which was in {path}"
        for some in files:
            offers = successors(base, scope, some)
            if offers:
                break
        else:
            return PatchConflict(message, hint=self._by_hand())
        best = offers[0]
        if self._target.place.kind == "release":
            where = f"--release {self._target.place.ref}"
        else:
            where = "--tree …"
        return PatchConflict(
            f"{message}; the most similar code: {', '.join(map(str, offers[:3]))}",
            hint=f"gemmaspec patch rebase {self._patch} {where} --successor {best.path}:{best.scope}",
        )

    def _most_alike(self, texts: Mapping[str, bytes], path: str, scope: str) -> str:
        if len(texts) == 1:
            return next(iter(texts))
        wanted = _cut(self._base.before[path], scope).splitlines()
        likeness = {}
        for file, data in texts.items():
            lines = _cut(data, scope).splitlines()
            likeness[file] = difflib.SequenceMatcher(None, wanted, lines, autojunk=False).ratio()
        best, second = sorted(likeness, key=lambda file: -likeness[file])[:2]
        if likeness[best] < _ALIKE or likeness[best] == likeness[second]:
            raise PatchConflict(f"{scope}, which was in {path}, is in {' and '.join(texts)}", hint=self._by_hand())
        return best

    def _patched_by_needs(self, homes: Mapping[str, object]) -> Mapping[str, bytes]:
        """Return the new vLLM's files after the patches that this one needs."""
        paths = {*homes, *deciding.needed_paths(self._needs)}
        files = self._target.files(paths)
        plan = launcher.Plan(1, "", "", (), self._needs, "")
        _, changed = launcher.decide_plan(plan, self._target.vllm, files.__getitem__)
        contents = {path: changed.get(path, files[path]) for path in homes}
        return {path: data for path, data in contents.items() if data is not None}

    def _by_hand(self) -> str:
        place = self._target.place
        if place.kind == "release":
            where = f"--release {place.ref}"
        else:
            where = f"--tree {place.ref}"
        return f"gemmaspec patch new {self._labels[0].partition(' ')[2]} {where} --file vllm/….py"


def _outermost(scopes: Iterator[str]) -> list[str]:
    unique = list(dict.fromkeys(scopes))
    outermost = []
    for scope in unique:
        if not any(_inside(scope, other) for other in unique):
            outermost.append(scope)
    return outermost


def _inside(scope: str, other: str) -> bool:
    return scope != other and (not other or scope.startswith(f"{other}."))


def _are_single(data: bytes, scopes: Iterable[str]) -> bool:
    return all(_once(data, scope) for scope in scopes)


def _once(data: bytes, scope: str) -> bool:
    """Return whether a file has the scope and its text exactly once, so that the text can be replaced."""
    try:
        return len(launcher.source_of(data).spans(scope)) == 1 and data.count(_cut(data, scope)) == 1
    except launcher.NOT_PYTHON:
        return False


def _cut(data: bytes, scope: str) -> bytes:
    """Return the text of the first function or class of that name, including decorators; the whole file for ""."""
    if not scope:
        return data
    source = launcher.source_of(data)
    begin, end = source.spans(scope)[0]
    return b"".join(source.raw[begin:end])


@dataclass(frozen=True, kw_only=True)
class Merged:
    """The merged file, with conflict markers (in diff3 style, with the base) if there are conflicts."""

    data: bytes
    conflicts: int


def merge(*, base: bytes, ours: bytes, theirs: bytes, labels: tuple[str, str, str]) -> Merged:
    """Apply the edit from `base` to `ours` to `theirs`; the labels (ours, base, theirs) name the markers.

    Raise EnvironmentMissing without git, or if git cannot merge the files because they are binary.
    """
    with tempfile.TemporaryDirectory(prefix="gemmaspec-") as folder:
        files = [Path(folder) / name for name in ("ours", "base", "theirs")]
        for file, data in zip(files, (ours, base, theirs), strict=True):
            file.write_bytes(data)
        command = ["git", "merge-file", "-p", "--diff3"]
        for label in labels:
            command += ["-L", label]
        command += map(str, files)
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            raise EnvironmentMissing("git is not on PATH, but a merge needs it", hint="git --version") from None
    if not 0 <= done.returncode <= _MOST_CONFLICTS:
        raise EnvironmentMissing(f"git cannot merge the files: {done.stderr.decode('utf-8', 'replace').strip()}")
    return Merged(data=done.stdout, conflicts=done.returncode)
