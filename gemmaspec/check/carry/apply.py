"""`patch apply`: build the overlay of a start in another folder, to look at it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from gemmaspec.check.carry.patchset import load_set
from gemmaspec.check.carry.shipped import is_required
from gemmaspec.core import data, launcher
from gemmaspec.core.errors import PatchConflict, UsageError
from gemmaspec.core.files import unwritable
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.patching.plan import compile_plan
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.stack.build import profile_plan
from gemmaspec.run.trees.folder import package_in, read_inside


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The decisions and the patched files; `out` contains them and links to all other files."""

    out: Path
    vllm: str
    results: Sequence[launcher.PatchResult]
    changed: Sequence[str]


def apply(
    tree: Path, out: Path, *, patches: Sequence[str] = (), folders: Sequence[Path] = (), profile: str | None = None
) -> Applied:
    """Patch a mirror of a folder's vllm/ with the launcher's own code; all or nothing.

    Without `patches`, apply all patches of the folders. Raise PatchConflict if a required one does not fit,
    UsageError if `out` exists and is not an overlay, PatchError and EnvironmentMissing for unreadable input.
    """
    package = package_in(tree)
    _check_out(out, package)
    plan = _plan(patches, folders, profile)
    version = launcher.vllm_version(package)
    results, changed = launcher.decide_plan(plan, version, lambda path: read_inside(tree, path))
    _stop_on_conflict(results, version, tree, asked_for=patches)
    try:
        _write(package, out, changed)
    except OSError as error:
        raise unwritable(out, error) from None
    return Applied(out=out, vllm=version, results=results, changed=sorted(changed))


def _plan(patches: Sequence[str], folders: Sequence[Path], profile: str | None) -> launcher.Plan:
    shelf = Shelf(folders or data.patch_folders())
    if profile and patches:
        raise UsageError("name patches or a profile, not both")
    if profile:
        return launcher.parse_plan(profile_plan(load_profile(profile).profile, shelf))
    chosen = load_set(patches, folders)
    for error in chosen.refused.values():
        raise error
    patches_in_order = chain.from_iterable(judge.patches for judge in chosen.judges.values())
    ids = list(dict.fromkeys(patch.id for patch in patches_in_order))
    speed = {id_: () for id_ in ids if chosen.every[id_].is_speed}
    ids = [id_ for id_ in ids if id_ not in speed]
    if patches:
        optional = []
    else:
        optional = [id_ for id_ in ids if not is_required(id_, asked_for=bool(folders))]
    required = [id_ for id_ in ids if id_ not in optional]
    return launcher.parse_plan(compile_plan("overlay", required, optional, (), chosen.every, speed=speed))


def _check_out(out: Path, package: Path) -> None:
    """Raise UsageError unless `out` is new or an overlay, and outside the package that it mirrors."""
    place = out.absolute()
    if place.resolve().is_relative_to(package.resolve()):
        raise UsageError(f"{out} is inside the vllm package to patch")
    if place.is_symlink() or (place.exists() and not (place / launcher.OVERLAY_MARKER).is_file()):
        raise UsageError(f"{out} exists and is not an overlay; it was left unchanged", hint="name a new folder")


def _stop_on_conflict(
    results: Sequence[launcher.PatchResult], version: str, tree: Path, *, asked_for: Sequence[str]
) -> None:
    """Raise PatchConflict for a required patch that does not fit, and for a speed patch asked for by name."""
    required = [result for result in results if result.patch.required]
    named = [result for result in results if result.patch.id in asked_for]
    unfit = [result for result in required if result.state not in launcher.FITS]
    unfit += [result for result in named if result.state == launcher.LEFT_OUT]
    if not unfit:
        return
    names = ", ".join(result.patch.id for result in unfit)
    lines = [f"{names} does not fit vllm {version}; nothing was written"]
    for result in unfit:
        for file in result.files:
            if file.state not in ("applies", "applied"):
                lines.append(f"  {file.path}:{file.line or 1}: {file.state}: {file.detail}")
    raise PatchConflict("\n".join(lines), hint=f"gemmaspec patch verify --tree {tree}")


def _write(package: Path, out: Path, changed: dict[str, bytes]) -> None:
    """Build the overlay next to `out`, then rename it into place."""
    place = out.absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as beside:
        built = launcher.build_overlay(package, Path(beside), changed)
        launcher.delete(place)
        if built:
            built.rename(place)
