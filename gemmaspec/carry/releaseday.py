"""`patch release-day`: what a new vLLM does to the patches and to the shipped profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemmaspec import launcher
from gemmaspec.carry.merging import find_base, merges
from gemmaspec.carry.newvariant import diffs_of
from gemmaspec.carry.patchset import PatchSet, load_set
from gemmaspec.carry.releasenames import Names, compare
from gemmaspec.carry.shipped import shipped
from gemmaspec.carry.verify import PatchOnTree, decide_tree
from gemmaspec.errors import EnvironmentMissing, GemmaspecError, PatchConflict, PatchError, UsageError
from gemmaspec.finding import Finding
from gemmaspec.patching.patch import Patch
from gemmaspec.profile.load import Loaded
from gemmaspec.stack.build import profile_plan
from gemmaspec.trees import listing as listing_of
from gemmaspec.trees.folder import open_folder
from gemmaspec.trees.listing import Listing
from gemmaspec.trees.reader import FolderReader, Reader, ReleaseReader
from gemmaspec.trees.released import Releases
from gemmaspec.trees.tree import Tree, TreeSource, Unreadable
from gemmaspec.trees.verdicts import Judge

Carried = Literal["clean", "by hand", "unknown"]
"""How a patch that does not fit would come out of a three-way merge."""


@dataclass(frozen=True, kw_only=True)
class Rebase:
    """A merge that was tried: from which release, how it came out, and why."""

    base: str | None
    outcome: Carried
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class ProfileDay:
    """Whether a profile would start, and what stops it, is left out or is new to it."""

    name: str
    starts: bool
    blocked_by: tuple[str, ...] = ()
    """Patches, or what the plan is refused for."""
    left_out: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    """What `profile lint` finds on this vLLM and not on the one before it; an error of these stops it too."""


@dataclass(frozen=True, kw_only=True)
class Day:
    """Everything about one new vLLM."""

    place: TreeSource
    vllm: str
    cells: tuple[PatchOnTree, ...]
    rebases: Mapping[str, Rebase]
    """By id, for the patches that do not fit."""
    profiles: tuple[ProfileDay, ...]
    names: Names | EnvironmentMissing
    """Flags, variables and keys against the release before; why not, where they cannot be read."""

    @property
    def all_start(self) -> bool:
        """Whether every shipped profile would start."""
        return all(profile.starts for profile in self.profiles)


def release_day(release: str | None, *, tree: Path | None = None, folders: Sequence[Path] = ()) -> Day:
    """Look at a release (the newest by default) or a folder. Nothing is written or started.

    Raises EnvironmentMissing for a vLLM that cannot be read, PatchError for a patch that is refused.
    """
    if release and tree:
        raise UsageError("name a release or --tree, not both")
    patches = load_set((), folders)
    for error in patches.refused.values():
        raise error
    listing = _listing(needed=tree is None)
    new = open_folder(tree, patches.needed_paths) if tree else _release(release, listing, patches)
    cells = tuple(decide_tree(new, patches))
    unfit = [cell.verdict.patch for cell in cells if not cell.verdict.fits]
    reader: Reader = FolderReader(tree) if tree else ReleaseReader(new.vllm, listing)
    profiles = shipped()
    names = _names(reader, profiles, patches.every)
    return Day(
        place=new.place,
        vllm=new.vllm,
        cells=cells,
        rebases={name: _try_rebase(patches.judges[name], patches.every[name], reader, listing) for name in unfit},
        profiles=tuple(_profile_day(loaded, new, patches.every, names) for loaded in profiles),
        names=names,
    )


def _listing(*, needed: bool) -> Listing:
    """The released wheels; without them, a folder can still be looked at."""
    try:
        return listing_of.published(refresh=needed)
    except EnvironmentMissing:
        if needed:
            raise
        return Listing(wheels={})


def _release(release: str | None, listing: Listing, patches: PatchSet) -> Tree:
    final = [one for one in listing.releases() if launcher.PUBLISHED_RELEASE.fullmatch(one)]
    listing, chosen = listing_of.choose([release or final[-1]], listing)
    if len(chosen) != 1:
        raise UsageError(f"one release is looked at, and {release!r} means {len(chosen)}")
    (tree,) = Releases(listing).open(chosen, patches.needed_paths)
    if isinstance(tree, Unreadable):
        raise tree.error
    return tree


def _names(reader: Reader, profiles: Sequence[Loaded], patches: Mapping[str, Patch]) -> Names | EnvironmentMissing:
    try:
        return compare(reader, profiles, patches)
    except EnvironmentMissing as error:
        return error


def _profile_day(
    loaded: Loaded, tree: Tree, patches: Mapping[str, Patch], names: Names | EnvironmentMissing
) -> ProfileDay:
    """The profile's plan, decided as its start would decide it, and what is wrong with it now."""
    profile = loaded.profile
    findings = names.findings[profile.name] if isinstance(names, Names) else ()
    try:
        plan = launcher.parse_plan(profile_plan(profile, patches))
    except PatchError as error:
        return ProfileDay(name=profile.name, starts=False, blocked_by=(error.message,))
    results, _ = launcher.decide_plan(plan, tree.vllm, tree.read)
    unfit = [result.patch for result in results if result.state not in launcher.FITS]
    blocked_by = tuple(patch.id for patch in unfit if patch.required)
    left_out = tuple(patch.id for patch in unfit if not patch.required)
    refused = any(finding.severity == "error" for finding in findings)
    return ProfileDay(
        name=profile.name,
        starts=not blocked_by and not refused,
        blocked_by=blocked_by,
        left_out=left_out,
        findings=findings,
    )


def _try_rebase(judge: Judge, patch: Patch, new: Reader, listing: Listing) -> Rebase:
    """The merges that `patch rebase` would begin with; nothing is written."""
    base = None
    try:
        found = find_base(judge, patch, new.vllm, listing)
        base = found.version
        merged = merges(judge, patch, found, new)
        torn = [merge for merge in merged if merge.file.conflicts]
        if not torn:
            diffs_of({merge.file.path: (merge.theirs, merge.merged) for merge in merged})
    except (PatchConflict, PatchError) as error:
        return Rebase(base=base, outcome="by hand", detail=error.message)
    except GemmaspecError as error:
        return Rebase(base=base, outcome="unknown", detail=error.message)
    files = [merge.file for merge in merged]
    moved = [f"the code of {file.source} is in {file.path} now" for file in files if file.path != file.source]
    detail = [f"{merge.file.path}: {merge.file.conflicts} conflicts" for merge in torn]
    return Rebase(base=base, outcome="by hand" if torn else "clean", detail="; ".join(detail or moved))
