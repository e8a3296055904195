"""`patch release-day`: what a new vLLM does to the patches and to the shipped profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.version import InvalidVersion, Version

from gemmaspec.deploy.patchset import PatchSet, load_set
from gemmaspec.deploy.profiles import shipped_profiles
from gemmaspec.deploy.verify import Cell, decide_tree
from gemmaspec.errors import EnvironmentMissing, GemmaspecError, PatchError, UsageError
from gemmaspec.launcher import launch
from gemmaspec.patching.patch import Patch
from gemmaspec.profile.model import Profile
from gemmaspec.stack.build import profile_plan
from gemmaspec.trees import listing as listing_of
from gemmaspec.trees.folder import open_folder
from gemmaspec.trees.listing import Listing
from gemmaspec.trees.merge import merge
from gemmaspec.trees.released import Releases
from gemmaspec.trees.tree import Place, Tree, Unreadable
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
    """Whether the patches of a profile would let it start, and what stops it or is left out."""

    name: str
    starts: bool
    blocked_by: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Day:
    """Everything about one new vLLM."""

    place: Place
    vllm: str
    cells: tuple[Cell, ...]
    rebases: Mapping[str, Rebase]
    """By id, for the patches that do not fit."""
    profiles: tuple[ProfileDay, ...]

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
    return Day(
        place=new.place,
        vllm=new.vllm,
        cells=cells,
        rebases={name: _try_rebase(patches.judges[name], new, listing) for name in unfit},
        profiles=tuple(_profile_day(profile, new, patches.every) for profile in shipped_profiles()),
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
    final = [one for one in listing.releases() if launch.RELEASE.fullmatch(one)]
    listing, chosen = listing_of.choose([release or final[-1]], listing)
    if len(chosen) != 1:
        raise UsageError(f"one release is looked at, and {release!r} means {len(chosen)}")
    (tree,) = Releases(listing).open(chosen, patches.needed_paths)
    if isinstance(tree, Unreadable):
        raise tree.error
    return tree


def _profile_day(profile: Profile, tree: Tree, patches: Mapping[str, Patch]) -> ProfileDay:
    """The profile's plan, decided as its start would decide it."""
    try:
        plan = launch.parse_plan(profile_plan(profile, patches))
    except PatchError as error:
        return ProfileDay(name=profile.name, starts=False, blocked_by=(error.message,))
    results, _ = launch.decide_plan(plan, tree.vllm, tree.read)
    unfit = [result.patch for result in results if result.state not in launch.FITS]
    blocked_by = tuple(patch.id for patch in unfit if patch.required)
    left_out = tuple(patch.id for patch in unfit if not patch.required)
    return ProfileDay(name=profile.name, starts=not blocked_by, blocked_by=blocked_by, left_out=left_out)


def _try_rebase(judge: Judge, new: Tree, listing: Listing) -> Rebase:
    """Merge from the newest older release that the patch applies to."""
    for version in _older(new.vllm, listing):
        (base,) = Releases(listing).open([version], judge.needed_paths)
        if isinstance(base, Unreadable):
            return Rebase(base=version, outcome="unknown", detail=base.error.message)
        results, patched = launch.decide_plan(launch.Plan(1, "", "", (), judge.patches, ""), version, base.read)
        if results[-1].state == "applies":
            return _merge_all(base, {file.path for file in results[-1].files}, patched, new)
    return Rebase(base=None, outcome="unknown", detail="no released vLLM is known that it applies to")


def _older(vllm: str, listing: Listing) -> list[str]:
    """Final releases before this one, the newest first; all of them when its version is no number."""
    final = [one for one in reversed(listing.releases()) if launch.RELEASE.fullmatch(one)]
    try:
        return [one for one in final if Version(one) < Version(vllm)]
    except InvalidVersion:
        return final


def _merge_all(base: Tree, paths: set[str], patched: Mapping[str, bytes], new: Tree) -> Rebase:
    for path in sorted(paths):
        old, theirs = base.read(path), new.files.get(path)
        if old is None or theirs is None:
            return Rebase(base=base.vllm, outcome="by hand", detail=f"{path} is not in vllm {new.vllm}")
        labels = ("patched", f"vllm {base.vllm}", f"vllm {new.vllm}")
        try:
            merged = merge(base=old, ours=patched[path], theirs=theirs, labels=labels)
            compile(merged.data, path, "exec", dont_inherit=True) if not merged.conflicts else None
        except GemmaspecError as error:
            return Rebase(base=base.vllm, outcome="unknown", detail=error.message)
        except (SyntaxError, ValueError) as error:
            return Rebase(base=base.vllm, outcome="by hand", detail=f"{path}: the merged file would not do: {error}")
        if merged.conflicts:
            return Rebase(base=base.vllm, outcome="by hand", detail=f"{path}: {merged.conflicts} conflicts")
    return Rebase(base=base.vllm, outcome="clean")
