"""Three-way merges of a patch: from a release that it fits to a vLLM that it does not, wherever the code is now.

base is the file of the release, ours is that file patched, theirs is the new vLLM's. What is merged is the function
or class that a hunk is in; for a hunk without one, the whole file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gemmaspec import launcher
from gemmaspec.carry.newvariant import Say, plain
from gemmaspec.carry.rebase_state import CarriedFile, Merge
from gemmaspec.errors import EnvironmentMissing, PatchConflict
from gemmaspec.patching import decide as deciding
from gemmaspec.patching.patch import Patch
from gemmaspec.trees.listing import Listing
from gemmaspec.trees.merge import merge
from gemmaspec.trees.reader import Reader, ReleaseReader, defines, find_scope, rings
from gemmaspec.trees.successors import successors
from gemmaspec.trees.verdicts import Judge

_ALIKE: Final = 0.5
"""How much of a function must be the same for one of that name elsewhere to be it, of several; 1 is all."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """A release that the patch applies to: its files, those of the variant that does it before and after."""

    version: str
    edits: tuple[launcher.FileEdit, ...]
    before: Mapping[str, bytes]
    after: Mapping[str, bytes]


def find_base(judge: Judge, patch: Patch, vllm: str, listed: Listing) -> Base:
    """The nearest release below a vLLM that the patch applies to, else the nearest above. Raises EnvironmentMissing."""
    for version in _nearest_first(patch, vllm, listed):
        files = ReleaseReader(version, listed).files(judge.needed_paths(version))
        results, changed = launcher.decide_plan(
            launcher.Plan(1, "", "", (), judge.patches, ""), version, files.__getitem__
        )
        if results[-1].state in ("applies", "drifted"):
            variant = next(one for one in judge.patches[-1].variants if one.name == results[-1].variant)
            before = {file.path: file.before for file in results[-1].files if file.before is not None}
            return Base(version=version, edits=variant.files, before=before, after=changed)
    raise EnvironmentMissing(
        f"{patch.id}: no published release of vllm is there that it applies to, so there is nothing to merge from",
        hint=f"gemmaspec patch verify {patch.id}",
    )


def _nearest_first(patch: Patch, vllm: str, listed: Listing) -> list[str]:
    """The published releases that the patch claims, but this one: those before it, then those after it."""
    claimed = [
        version
        for version in listed.releases()
        if launcher.PUBLISHED_RELEASE.fullmatch(version)
        and version != vllm
        and any(launcher.range_contains(variant.specifier, version) for variant in patch.variants)
    ]
    number = re.match(launcher.VERSION_NUMBER, vllm)
    if not number:
        return claimed[::-1]
    top = launcher.release_key(number[0])
    below = [version for version in claimed if launcher.release_key(plain(version)) <= top]
    return [*reversed(below), *(version for version in claimed if version not in below)]


def merges(
    judge: Judge, patch: Patch, base: Base, target: Reader, say: Say = lambda _: None, successor: str = ""
) -> list[Merge]:
    """The patch carried to each file of a vLLM, conflicts included; the nearest release is `base`.

    `successor` is where a function went that nothing is called any more, as vllm/….py:Class.name. Raises PatchConflict
    for code that is nowhere or in several places, EnvironmentMissing without git.
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
        """Each file of the new vLLM that the patch edits. Raises PatchConflict for code that is nowhere."""
        homes: dict[str, dict[str, dict[str, str]]] = {}
        for edit in self._base.edits:
            for scope in _outermost(hunk.function for hunk in edit.hunks):
                home, name = self._home(edit.path, scope)
                homes.setdefault(home, {}).setdefault(edit.path, {})[scope] = name
        theirs = self._patched_by_needs(homes)
        for path, sources in homes.items():
            if len(sources) > 1:
                raise PatchConflict(f"{' and '.join(sources)} have become one file, {path}", hint=self._by_hand())
            (source, scopes), *_ = sources.items()
            yield self._merged(path, source, scopes, theirs[path])

    def _merged(self, path: str, source: str, scopes: Mapping[str, str], theirs: bytes) -> Merge:
        """`scopes` are the names of then, each with that of now."""
        base, ours = self._base.before[source], self._base.after[source]
        single = all(_once(data, scope) for data in (base, ours) for scope in scopes)
        whole = "" in scopes or not single or not all(_once(theirs, scope) for scope in scopes.values())
        if whole and path != source:
            raise PatchConflict(f"{source}: its code is in {path} now, more than once", hint=self._by_hand())
        merged, conflicts = theirs, 0
        for scope, name in [("", "")] if whole else sorted(scopes.items()):
            sides = [_cut(base, scope), _cut(ours, scope), _cut(theirs, name)]
            done = merge(base=sides[0], ours=sides[1], theirs=sides[2], labels=self._labels)
            conflicts += done.conflicts
            merged = done.data if whole else merged.replace(sides[2], done.data, 1)
        file = CarriedFile(path=path, source=source, conflicts=conflicts, theirs=launcher.sha256(theirs))
        return Merge(file=file, base=base, ours=ours, theirs=theirs, merged=merged)

    def _home(self, path: str, scope: str) -> tuple[str, str]:
        """The file that has the scope now, and its name there."""
        data = self._target.files([path])[path]
        if data is not None and (not scope or defines(data, scope)):
            return path, scope
        if not scope:
            raise PatchConflict(f"{path} is not in {self._target.place}", hint=self._by_hand())
        self._say(f"{path}: {scope} is not there any more; looking for it in {self._target.place}")
        if self._successor:
            home, _, name = self._successor.partition(":")
            found_there = self._target.files([home])[home] if name else None
            if found_there is None or not defines(found_there, name):
                raise PatchConflict(f"{self._target.place} has no {name or 'function'} in {home}")
            self._say(f"{scope} is {name} in {home} now, as you say")
            return home, name
        found = find_scope(self._target, scope, path, self._say)
        if not found:
            raise self._renamed(path, scope)
        home = self._most_alike(found, path, scope)
        self._say(f"{scope} is in {home} now")
        return home, scope

    def _renamed(self, path: str, scope: str) -> PatchConflict:
        """What is said of code that nothing is called any more: the functions with nearly the same code."""
        base, here = self._base.before[path], self._target.files([path])
        files = [{one: data for one, data in here.items() if data}, *rings(self._target, path, lambda _: None)]
        offers = next((offered for some in files if (offered := successors(base, scope, some))), [])
        message = f"nothing in {self._target.place} is called {scope}, which was in {path}"
        if not offers:
            return PatchConflict(message, hint=self._by_hand())
        best = offers[0]
        where = f"--to {self._target.place.ref}" if self._target.place.kind == "release" else "--tree …"
        return PatchConflict(
            f"{message}; most like it: {', '.join(map(str, offers[:3]))}",
            hint=f"gemmaspec patch rebase {self._patch} {where} --successor {best.path}:{best.scope}",
        )

    def _most_alike(self, found: Mapping[str, bytes], path: str, scope: str) -> str:
        if len(found) == 1:
            return next(iter(found))
        wanted = _cut(self._base.before[path], scope).splitlines()
        likeness = {
            one: difflib.SequenceMatcher(None, wanted, _cut(data, scope).splitlines(), autojunk=False).ratio()
            for one, data in found.items()
        }
        best, second = sorted(likeness, key=lambda one: -likeness[one])[:2]
        if likeness[best] < _ALIKE or likeness[best] == likeness[second]:
            raise PatchConflict(f"{scope}, which was in {path}, is in {' and '.join(found)}", hint=self._by_hand())
        return best

    def _patched_by_needs(self, homes: Mapping[str, object]) -> Mapping[str, bytes]:
        """The new vLLM's files as the patch would find them."""
        paths = {*homes, *deciding.needed_paths(self._needs, self._target.vllm)}
        files = self._target.files(paths)
        plan = launcher.Plan(1, "", "", (), self._needs, "")
        _, changed = launcher.decide_plan(plan, self._target.vllm, files.__getitem__)
        found = {path: changed.get(path, files[path]) for path in homes}
        return {path: data for path, data in found.items() if data is not None}

    def _by_hand(self) -> str:
        place = self._target.place
        where = f"--release {place.ref}" if place.kind == "release" else f"--tree {place.ref}"
        return f"gemmaspec patch new {self._labels[0].partition(' ')[2]} {where} --file vllm/….py"


def _outermost(scopes: Iterator[str]) -> list[str]:
    """The scopes that are in no other of them."""
    found = list(dict.fromkeys(scopes))
    return [one for one in found if not any(_inside(one, other) for other in found)]


def _inside(scope: str, other: str) -> bool:
    return scope != other and (not other or scope.startswith(f"{other}."))


def _once(data: bytes, scope: str) -> bool:
    """Whether a file defines the scope once, and its text is there once, so that it can be cut out and put back."""
    try:
        return len(launcher.Source(data).spans(scope)) == 1 and data.count(_cut(data, scope)) == 1
    except launcher.NOT_PYTHON:
        return False


def _cut(data: bytes, scope: str) -> bytes:
    """The text of the first function or class of that name, decorators included; the whole file for ""."""
    if not scope:
        return data
    source = launcher.Source(data)
    begin, end = source.spans(scope)[0]
    return b"".join(source.raw[begin:end])
