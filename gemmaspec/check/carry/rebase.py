"""`patch rebase` and `patch continue`: carry a patch to a vLLM that it does not fit, with three-way merges."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemmaspec.check.carry import rebase_state
from gemmaspec.check.carry.merging import find_base, merges
from gemmaspec.check.carry.newvariant import Say, Wanted, add_variant, in_a_gap, release_number
from gemmaspec.check.carry.patchset import load_set
from gemmaspec.check.carry.rebase_state import Carried
from gemmaspec.core import data, launcher
from gemmaspec.core.errors import GemmaspecError, PatchConflict, UsageError
from gemmaspec.core.patching import decide as deciding
from gemmaspec.core.patching.decide import PatchVerdict
from gemmaspec.core.patching.patch import Patch, load_patch
from gemmaspec.run.trees import listing as listing_of
from gemmaspec.run.trees.listing import Listing
from gemmaspec.run.trees.reader import Reader, open_reader
from gemmaspec.run.trees.verdicts import Judge


@dataclass(frozen=True, kw_only=True)
class RebaseRequest:
    """A patch, its target (`to` or `tree`), and the first release of the new diff."""

    patch: str
    to: str | None = None
    tree: Path | None = None
    folders: tuple[Path, ...] = ()
    floor: str | None = None
    successor: str = ""
    """The new place of a renamed function, as vllm/….py:Class.name."""


@dataclass(frozen=True, kw_only=True)
class Rebased:
    """The result: the patch already fits (`verdict` says how), or a variant was written."""

    outcome: Literal["fits", "written"]
    patch: str
    vllm: str
    verdict: PatchVerdict | None = None
    folder: Path | None = None
    diff: str = ""
    versions: str = ""
    base: str = ""
    moved: Mapping[str, str] | None = None


def rebase(request: RebaseRequest, say: Say = lambda _: None) -> Rebased:
    """Carry a patch to another vLLM. A patch that already fits stays unchanged.

    Raise PatchConflict for a merge with conflicts, with the folder to resolve them in; UsageError while another rebase
    of the patch is in progress; EnvironmentMissing for an unreadable vLLM, or without git.
    """
    rebase_state.refuse_second(request.patch)
    if request.floor and not re.fullmatch(launcher.VERSION_NUMBER, request.floor):
        raise UsageError(f"--since {request.floor!r} must be a release like 0.34.0")
    judge, patch = _patch(request.patch, request.folders)
    listing = functools.cache(listing_of.published)
    target = open_reader(request.to, request.tree, listing)
    edited = {edit.path for edit in _edits(judge)}
    files = target.files(judge.needed_paths(target.vllm) | edited)
    verdicts = deciding.decide(judge.patches, target.vllm, files.__getitem__)
    _refuse_unfit_needs(verdicts[:-1], target)
    if verdicts[-1].fits and not in_a_gap(verdicts[-1].state, judge.patches[-1], target.vllm):
        return Rebased(outcome="fits", patch=patch.id, vllm=target.vllm, verdict=verdicts[-1])
    if not request.floor:
        release_number(target.vllm)
    say(f"{patch.id} does not fit {target.place}: {verdicts[-1].state}")
    state = _begin(judge, patch, target, request, listing(), say)
    conflicts = sum(file.conflicts for file in state.files)
    if conflicts:
        count = f"{conflicts} conflict{'s' if conflicts > 1 else ''}"
        raise rebase_state.conflict(state, f"{patch.id}: rebase onto {target.place}: {count} to resolve")
    return _finish(state, listing, say)


def _begin(judge: Judge, patch: Patch, target: Reader, request: RebaseRequest, listed: Listing, say: Say) -> Carried:
    """Merge, and store the result where it outlives this process."""
    base = find_base(judge, patch, target.vllm, listed)
    say(f"merging from vllm {base.version}")
    merged = merges(judge, patch, base, target, say, request.successor)
    state = Carried(
        schema=1,
        patch=patch.id,
        folder=str(patch.folder.absolute()),
        base=base.version,
        target=str(target.place),
        vllm=target.vllm,
        floor=request.floor or "",
        files=tuple(merge.file for merge in merged),
    )
    rebase_state.begin(state, merged)
    return state


def resume(id_: str, say: Say = lambda _: None) -> Rebased:
    """Continue a rebase: write the variant once the files have no conflict markers, compile and pass their checks.

    Raise PatchConflict and PatchError for remaining problems, UsageError if no rebase is in progress.
    """
    return _finish(rebase_state.load(id_), functools.cache(listing_of.published), say)


def _finish(state: Carried, listing: Callable[[], Listing], say: Say) -> Rebased:
    moved = {file.path: file.source for file in state.files if file.path != file.source}
    if rebase_state.is_proven(state.patch):
        return _write(state)
    judge, patch = _patch(state.patch, (*data.patch_folders(), Path(state.folder).parent))
    wanted = Wanted(
        files=rebase_state.resolved(state), moved=moved, vllm=state.vllm, base=state.base, floor=state.floor
    )
    try:
        written = add_variant(judge, patch, wanted, listing, say)
    except GemmaspecError as error:
        raise type(error)(error.message, hint=error.hint or rebase_state.conflict(state, "").hint) from None
    rebase_state.prepare_write(state, written.files)
    return _write(state)


def _write(state: Carried) -> Rebased:
    diff, folder = rebase_state.write(state), Path(state.folder)
    versions = load_patch(folder).variant_of(diff).versions
    moved = {file.path: file.source for file in state.files if file.path != file.source}
    return Rebased(
        outcome="written",
        patch=state.patch,
        vllm=state.vllm,
        folder=folder,
        diff=diff,
        versions=versions,
        base=state.base,
        moved=moved,
    )


def _patch(id_: str, folders: tuple[Path, ...]) -> tuple[Judge, Patch]:
    patches = load_set((id_,), folders)
    for error in patches.refused.values():
        raise error
    return patches.judges[id_], patches.every[id_]


def _edits(judge: Judge) -> Iterator[launcher.FileEdit]:
    """Yield every edit of every variant, because the base may use any of them."""
    for patch in judge.patches:
        for variant in patch.variants:
            yield from variant.files


def _refuse_unfit_needs(verdicts: tuple[PatchVerdict, ...], target: Reader) -> None:
    for verdict in verdicts:
        if not verdict.fits:
            raise PatchConflict(
                f"the patch {verdict.patch}, which it needs, does not fit {target.place}",
                hint=f"gemmaspec patch rebase {verdict.patch} --release …",
            )
