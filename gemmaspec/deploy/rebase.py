"""`patch rebase` and `patch continue`: carry a patch to a vLLM that it does not fit, by three-way merges.

base is the file of the nearest release that the patch fits, ours is that file patched, theirs is the new vLLM's.
What is merged is the function or class that a hunk is in, wherever it is now; a hunk without one, the whole file.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gemmaspec.deploy import unfinished
from gemmaspec.deploy.newvariant import Say, Wanted, add_variant, plain, release_number
from gemmaspec.deploy.patchset import load_set
from gemmaspec.deploy.unfinished import Carried, CarriedFile, Merge
from gemmaspec.errors import EnvironmentMissing, GemmaspecError, PatchConflict, UsageError
from gemmaspec.launcher import launch
from gemmaspec.patching import decide as deciding
from gemmaspec.patching.decide import Verdict
from gemmaspec.patching.patch import Patch, load_patch
from gemmaspec.trees import listing as listing_of
from gemmaspec.trees.listing import Listing
from gemmaspec.trees.merge import merge
from gemmaspec.trees.reader import Reader, ReleaseReader, defines, find_scope, open_reader
from gemmaspec.trees.verdicts import Judge

_ALIKE: Final = 0.5
"""How much of a function must be the same for one of that name elsewhere to be it, of several; 1 is all."""
Files = Mapping[str, "bytes | None"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A patch, where it is to be carried (`to` or `tree`), and the first release that the new diff is for."""

    patch: str
    to: str | None = None
    tree: Path | None = None
    folders: tuple[Path, ...] = ()
    floor: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rebased:
    """What came out: it fitted (`verdict` says how), or a variant was written."""

    outcome: Literal["fits", "written"]
    patch: str
    vllm: str
    verdict: Verdict | None = None
    folder: Path | None = None
    diff: str = ""
    versions: str = ""
    base: str = ""
    moved: Mapping[str, str] | None = None


def rebase(request: Request, say: Say = lambda _: None) -> Rebased:
    """Carry a patch to another vLLM. A patch that fits it is left alone.

    Raises PatchConflict for a merge that needs a hand, with the folder to do it in; UsageError while another rebase
    of the patch is under way; EnvironmentMissing for a vLLM that cannot be read, or without git.
    """
    unfinished.refuse_second(request.patch)
    if request.floor and not re.fullmatch(launch.NUMBER, request.floor):
        raise UsageError(f"--from {request.floor!r} is not like 0.34.0")
    judge, patch = _patch(request.patch, request.folders)
    listing = functools.cache(listing_of.published)
    target = open_reader(request.to, request.tree, listing)
    files = target.files(judge.needed_paths(target.vllm) | {edit.path for edit in _edits(judge)})
    verdicts = deciding.decide(judge.patches, target.vllm, files.__getitem__)
    _refuse_unfit_needs(verdicts[:-1], target)
    if verdicts[-1].fits and verdicts[-1].state != "not-needed":
        return Rebased(outcome="fits", patch=patch.id, vllm=target.vllm, verdict=verdicts[-1])
    if not request.floor:
        release_number(target.vllm)
    base = _base(judge, patch, target, listing)
    say(f"{patch.id} does not fit {target.place}: {verdicts[-1].state}; merging from vllm {base.version}")
    merges = list(_Merger(judge, patch, base, target, say).merges())
    state = Carried(
        schema=1,
        patch=patch.id,
        folder=str(patch.folder.absolute()),
        base=base.version,
        target=str(target.place),
        vllm=target.vllm,
        floor=request.floor or "",
        files=tuple(merge.file for merge in merges),
    )
    unfinished.begin(state, merges)
    conflicts = sum(merge.file.conflicts for merge in merges)
    if conflicts:
        where = f"{conflicts} place{'s' if conflicts > 1 else ''}"
        raise unfinished.conflict(state, f"{patch.id}: merging to {target.place} needs a hand in {where}")
    return _finish(state, listing, say)


def resume(id_: str, say: Say = lambda _: None) -> Rebased:
    """Go on with a rebase: write the variant once the files hold no marker, compile, and do what they should.

    Raises PatchConflict and PatchError for what is still to be done, UsageError when none is under way.
    """
    return _finish(unfinished.load(id_), functools.cache(listing_of.published), say)


def _finish(state: Carried, listing: Callable[[], Listing], say: Say) -> Rebased:
    moved = {file.path: file.source for file in state.files if file.path != file.source}
    if unfinished.is_proven(state.patch):
        return _write(state)
    judge, patch = _patch(state.patch, (Path(state.folder).parent,))
    wanted = Wanted(files=unfinished.resolved(state), moved=moved, vllm=state.vllm, base=state.base, floor=state.floor)
    try:
        written = add_variant(judge, patch, wanted, listing, say)
    except GemmaspecError as error:
        raise type(error)(error.message, hint=error.hint or unfinished.conflict(state, "").hint) from None
    unfinished.prepare_write(state, written.files)
    return _write(state)


def _write(state: Carried) -> Rebased:
    diff, folder = unfinished.write(state), Path(state.folder)
    variants = load_patch(folder).text.variants
    return Rebased(
        outcome="written",
        patch=state.patch,
        vllm=state.vllm,
        folder=folder,
        diff=diff,
        versions=next(variant.versions for variant in variants if variant.diff == diff),
        base=state.base,
        moved={file.path: file.source for file in state.files if file.path != file.source},
    )


def _patch(id_: str, folders: tuple[Path, ...]) -> tuple[Judge, Patch]:
    patches = load_set((id_,), folders)
    for error in patches.refused.values():
        raise error
    return patches.judges[id_], patches.every[id_]


def _edits(judge: Judge) -> Iterator[launch.FileEdit]:
    """Every edit of every variant: whichever the base turns out to use."""
    return (edit for patch in judge.patches for variant in patch.variants for edit in variant.files)


def _refuse_unfit_needs(verdicts: tuple[Verdict, ...], target: Reader) -> None:
    for verdict in verdicts:
        if not verdict.fits:
            raise PatchConflict(
                f"{verdict.patch}, which it needs, does not fit {target.place}",
                hint=f"gemmaspec patch rebase {verdict.patch} --to …",
            )


@dataclass(frozen=True, kw_only=True)
class _Base:
    """A release that the patch applies to: its files, those of the variant that does it before and after."""

    version: str
    edits: tuple[launch.FileEdit, ...]
    before: Mapping[str, bytes]
    after: Mapping[str, bytes]


def _base(judge: Judge, patch: Patch, target: Reader, listing: Callable[[], Listing]) -> _Base:
    """The nearest release below the target that the patch applies to, else the nearest above."""
    listed = listing()
    claimed = [
        version
        for version in listed.releases()
        if launch.RELEASE.fullmatch(version)
        and any(launch.contains(variant.specifier, version) for variant in patch.variants)
    ]
    try:
        top = launch.release(release_number(target.vllm))
    except UsageError:
        top = launch.release(plain(claimed[-1])) if claimed else ()
    below = [version for version in claimed if launch.release(plain(version)) <= top and version != target.vllm]
    above = [version for version in claimed if launch.release(plain(version)) > top]
    for version in [*reversed(below), *above]:
        files = ReleaseReader(version, listed).files(judge.needed_paths(version))
        results, changed = launch.decide_plan(launch.Plan(1, "", "", (), judge.patches, ""), version, files.__getitem__)
        if results[-1].state == "applies":
            variant = next(one for one in judge.patches[-1].variants if one.name == results[-1].variant)
            before = {file.path: file.before for file in results[-1].files if file.before is not None}
            return _Base(version=version, edits=variant.files, before=before, after=changed)
    raise EnvironmentMissing(
        f"{patch.id}: no published release of vllm is there that it applies to, so there is nothing to merge from",
        hint=f"gemmaspec patch verify {patch.id}",
    )


class _Merger:
    """Merges the files of a patch, one function or class at a time."""

    def __init__(self, judge: Judge, patch: Patch, base: _Base, target: Reader, say: Say) -> None:
        self._needs = judge.patches[:-1]
        self._base, self._target, self._say = base, target, say
        self._labels = f"patch {patch.id}", f"vllm {base.version}", str(target.place)

    def merges(self) -> Iterator[Merge]:
        """Each file of the new vLLM that the patch edits. Raises PatchConflict for code that is nowhere."""
        homes: dict[str, dict[str, set[str]]] = {}
        for edit in self._base.edits:
            for scope in _outermost(hunk.scope for hunk in edit.hunks):
                home = self._home(edit.path, scope)
                homes.setdefault(home, {}).setdefault(edit.path, set()).add(scope)
        theirs = self._patched_by_needs(homes)
        for path, sources in homes.items():
            if len(sources) > 1:
                raise PatchConflict(f"{' and '.join(sources)} have become one file, {path}", hint=self._by_hand())
            (source, scopes), *_ = sources.items()
            yield self._merged(path, source, scopes, theirs[path])

    def _merged(self, path: str, source: str, scopes: set[str], theirs: bytes) -> Merge:
        base, ours = self._base.before[source], self._base.after[source]
        whole = "" in scopes or not all(_once(data, scope) for data in (base, ours, theirs) for scope in scopes)
        if whole and path != source:
            raise PatchConflict(f"{source}: its code is in {path} now, more than once", hint=self._by_hand())
        merged, conflicts = theirs, 0
        for scope in [""] if whole else sorted(scopes):
            sides = [_cut(data, scope) for data in (base, ours, theirs)]
            done = merge(base=sides[0], ours=sides[1], theirs=sides[2], labels=self._labels)
            conflicts += done.conflicts
            merged = done.data if whole else merged.replace(sides[2], done.data, 1)
        file = CarriedFile(path=path, source=source, conflicts=conflicts, theirs=launch.sha256(theirs))
        return Merge(file=file, base=base, ours=ours, theirs=theirs, merged=merged)

    def _home(self, path: str, scope: str) -> str:
        """The file that has the scope now."""
        data = self._target.files([path])[path]
        if data is not None and (not scope or defines(data, scope)):
            return path
        if not scope:
            raise PatchConflict(f"{path} is not in {self._target.place}", hint=self._by_hand())
        self._say(f"{path}: {scope} is not there any more; looking for it in {self._target.place}")
        found = find_scope(self._target, scope, path)
        home = self._most_alike(found, path, scope)
        self._say(f"{scope} is in {home} now")
        return home

    def _most_alike(self, found: Mapping[str, bytes], path: str, scope: str) -> str:
        if not found:
            raise PatchConflict(
                f"nothing in {self._target.place} is called {scope}, which was in {path}", hint=self._by_hand()
            )
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
        plan = launch.Plan(1, "", "", (), self._needs, "")
        _, changed = launch.decide_plan(plan, self._target.vllm, files.__getitem__)
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
        return len(launch.Source(data).spans(scope)) == 1 and data.count(_cut(data, scope)) == 1
    except launch.UNREADABLE:
        return False


def _cut(data: bytes, scope: str) -> bytes:
    """The text of the first function or class of that name, decorators included; the whole file for ""."""
    if not scope:
        return data
    source = launch.Source(data)
    begin, end = source.spans(scope)[0]
    return b"".join(source.raw[begin:end])
