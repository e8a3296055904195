"""Check a new vLLM against the patches and the shipped profiles, without writing or starting anything.

    .venv/bin/python tools/release_patches.py [RELEASE | --tree DIR] [--patches DIR …] [--json]

Exit code 5 if a shipped profile would not start.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from release_names import Names, compare

from gemmaspec.check.carry.merging import find_base, merges
from gemmaspec.check.carry.newvariant import diffs_of
from gemmaspec.check.carry.patchset import PatchOnTree, PatchSet, load_set
from gemmaspec.check.carry.shipped import shipped
from gemmaspec.check.carry.verify import decide_tree
from gemmaspec.cli import output
from gemmaspec.core import launcher
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, PatchConflict, PatchError, UsageError
from gemmaspec.core.finding import Finding
from gemmaspec.core.patching.patch import Patch
from gemmaspec.core.profile.load import Loaded
from gemmaspec.run.engine.lines import clean
from gemmaspec.run.stack.build import profile_plan
from gemmaspec.run.trees import listing as listing_of
from gemmaspec.run.trees.folder import open_folder
from gemmaspec.run.trees.listing import Listing
from gemmaspec.run.trees.reader import FolderReader, Reader, ReleaseReader
from gemmaspec.run.trees.released import Releases
from gemmaspec.run.trees.tree import Tree, TreeSource, Unreadable
from gemmaspec.run.trees.verdicts import Judge

Carried = Literal["clean", "by hand", "unknown"]
"""The expected result of a three-way merge for a patch that does not fit."""


@dataclass(frozen=True, kw_only=True)
class Rebase:
    """A trial merge: its base release, the result and the reason."""

    base: str | None
    outcome: Carried
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class ProfileDay:
    """Whether a profile would start; what stops it, what is skipped, and what is new."""

    name: str
    starts: bool
    blocked_by: tuple[str, ...] = ()
    """Patches that conflict, or why the plan is invalid."""
    left_out: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    """New findings of `profile lint` since the release before; an error among them stops the start too."""


@dataclass(frozen=True, kw_only=True)
class Day:
    """All results for one new vLLM."""

    place: TreeSource
    vllm: str
    cells: tuple[PatchOnTree, ...]
    rebases: Mapping[str, Rebase]
    """Trial merges by id, for the patches that do not fit."""
    profiles: tuple[ProfileDay, ...]
    names: Names | EnvironmentMissing
    """Changes of flags, variables and keys since the release before, or why they are unknown."""

    @property
    def all_start(self) -> bool:
        """Whether every shipped profile would start."""
        return all(profile.starts for profile in self.profiles)


def release_day(
    release: str | None,
    *,
    tree: Path | None = None,
    folders: Sequence[Path] = (),
    profiles: Sequence[Loaded] | None = None,
) -> Day:
    """Check a release (by default the newest) or a folder with the profiles that ship, or others. Nothing is written.

    Raise EnvironmentMissing for an unreadable vLLM, PatchError for an invalid patch.
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
    profiles = shipped() if profiles is None else profiles
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
    """Return the released wheels; a folder can be checked without them."""
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
        raise UsageError(f"name one release; {release!r} means {len(chosen)}")
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
    """Return the result for a profile: its plan, decided as at a start, and new problems."""
    profile = loaded.profile
    findings = names.findings[profile.name] if isinstance(names, Names) else ()
    try:
        plan = launcher.parse_plan(profile_plan(profile, patches))
    except PatchError as error:
        return ProfileDay(name=profile.name, starts=False, blocked_by=(error.message,))
    results, _ = launcher.decide_plan(plan, tree.vllm, tree.read)
    unfit = [result.patch for result in results if result.state not in launcher.FITS]
    blocked_by = tuple(patch.id for patch in unfit if patch.required)
    without = {result.patch.id for result in results if result.state == launcher.LEFT_OUT}
    left_out = (*(patch.id for patch in unfit if not patch.required), *sorted(without))
    refused = any(finding.severity == "error" for finding in findings)
    return ProfileDay(
        name=profile.name,
        starts=not blocked_by and not refused,
        blocked_by=blocked_by,
        left_out=left_out,
        findings=findings,
    )


def _try_rebase(judge: Judge, patch: Patch, new: Reader, listing: Listing) -> Rebase:
    """Return the result of the merges that `patch rebase` would begin with; nothing is written."""
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
    moved = [f"the code of {file.source} is now in {file.path}" for file in files if file.path != file.source]
    detail = [
        f"{merge.file.path}: {merge.file.conflicts} conflict{'s' if merge.file.conflicts > 1 else ''}" for merge in torn
    ]
    return Rebase(base=base, outcome="by hand" if torn else "clean", detail="; ".join(detail or moved))


def show(day: Day, *, as_json: bool) -> int:
    """Print the effects of a new vLLM release and return the exit code."""
    if as_json:
        output.json_data(_day_json(day))
        return 0 if day.all_start else 5
    output.data(f"{day.place}" + (f": vllm {day.vllm}" if day.place.kind != "release" else ""))
    for cell in day.cells:
        verdict = cell.verdict
        output.data(f"  {verdict.patch}: {verdict.state}{f' ({verdict.variant})' if verdict.variant else ''}")
        for file in verdict.files if not verdict.fits else ():
            output.data(clean(f"    {file.path}{f':{file.line}' if file.line else ''}: {file.detail}"))
        if verdict.patch in day.rebases:
            output.data(f"    {_rebase_line(day, verdict.patch)}")
    _show_names(day.names)
    output.data("profiles")
    for profile in day.profiles:
        refused = sorted({finding.code for finding in profile.findings if finding.severity == "error"})
        reasons = ", ".join([*profile.blocked_by, *refused])
        verdict_of = "would start" if profile.starts else f"would NOT start: {reasons}"
        left_out = f", without {', '.join(profile.left_out)}" if profile.left_out else ""
        output.data(f"  {profile.name}: {verdict_of}{left_out}")
        for finding in profile.findings:
            output.data(
                clean(f"    {finding.place}: {finding.severity} {finding.code}: {finding.key}: {finding.message}")
            )
    return 0 if day.all_start else 5


def _show_names(names: Names | EnvironmentMissing) -> None:
    if isinstance(names, EnvironmentMissing):
        output.progress(clean(f"note: {names.message}; flags, variables and keys were not compared"))
        return
    output.data(f"names, compared with {names.before}: {names.came} added, {len(names.gone)} removed")
    for change in names.gone:
        output.data(clean(f"  {change}"))


def _rebase_line(day: Day, patch: str) -> str:
    rebase = day.rebases[patch]
    if rebase.outcome == "clean":
        detail = f" ({rebase.detail})" if rebase.detail else ""
        return f"a merge from {rebase.base} is clean{detail}: gemmaspec patch rebase {patch}"
    base = f" from {rebase.base}" if rebase.base else ""
    how = "has conflicts" if rebase.outcome == "by hand" else "could not be tried"
    return f"a merge{base} {how}: {rebase.detail}"


def _day_json(day: Day) -> dict[str, Any]:
    rows = [
        {
            "patch": cell.verdict.patch,
            "state": cell.verdict.state,
            "required": cell.required,
            "variant": cell.verdict.variant,
            "rebase": day.rebases.get(cell.verdict.patch),
        }
        for cell in day.cells
    ]
    tree = {"kind": day.place.kind, "ref": day.place.ref, "vllm": day.vllm}
    return {
        "ok": day.all_start,
        "tree": tree,
        "patches": rows,
        "names": _names_json(day.names),
        "profiles": day.profiles,
    }


def _names_json(names: Names | EnvironmentMissing) -> dict[str, Any]:
    if isinstance(names, EnvironmentMissing):
        return {"read": False, "why": names.message}
    gone = [{"kind": change.kind, "name": change.name} for change in names.gone]
    return {"read": True, "before": names.before, "came": names.came, "gone": gone}


def main(arguments: Sequence[str], profiles: Sequence[Loaded] | None = None) -> int:
    """Check one vLLM with the profiles that ship, or others; print the result and return the exit code."""
    parser = argparse.ArgumentParser(prog="release_patches.py")
    parser.add_argument("release", nargs="?", help="vLLM release such as 0.34.0 (default: the newest)")
    parser.add_argument("--tree", type=Path, metavar="DIR", help="folder that contains vllm/")
    parser.add_argument("--patches", type=Path, metavar="DIR", action="append", default=[], dest="folders")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        day = release_day(given.release, tree=given.tree, folders=given.folders, profiles=profiles)
    except GemmaspecError as error:
        return output.failure(error, as_json=given.json)
    return show(day, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
