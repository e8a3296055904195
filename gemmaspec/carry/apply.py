"""`patch apply`: the overlay that a start would build, somewhere to look at it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmaspec import data, launcher
from gemmaspec.carry.patchset import load_set
from gemmaspec.carry.shipped import is_required
from gemmaspec.errors import PatchConflict, UsageError
from gemmaspec.files import unwritable
from gemmaspec.patching.patch import Shelf
from gemmaspec.patching.plan import compile_plan
from gemmaspec.profile.load import load_profile
from gemmaspec.stack.build import profile_plan
from gemmaspec.trees.folder import package_in, read_inside


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What was decided, and the patched files; `out` holds them beside links to all others."""

    out: Path
    vllm: str
    results: Sequence[launcher.PatchResult]
    changed: Sequence[str]


def apply(
    tree: Path, out: Path, *, patches: Sequence[str] = (), folders: Sequence[Path] = (), profile: str | None = None
) -> Applied:
    """Patch a mirror of a folder's vllm/, by the launcher's own code; all or nothing.

    Without patches, all of the folders. Raises PatchConflict when a required one does not fit, UsageError for
    an `out` that is something else than an overlay, PatchError and EnvironmentMissing for what cannot be read.
    """
    package = package_in(tree)
    _check_out(out, package)
    plan = _plan(patches, folders, profile)
    version = launcher.vllm_version(package)
    results, changed = launcher.decide_plan(plan, version, lambda path: read_inside(tree, path))
    _stop_on_conflict(results, version, tree)
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
    ids = list(dict.fromkeys(one.id for judge in chosen.judges.values() for one in judge.patches))
    optional = [] if patches else [id_ for id_ in ids if not is_required(id_, asked_for=bool(folders))]
    return launcher.parse_plan(
        compile_plan("overlay", [id_ for id_ in ids if id_ not in optional], optional, (), chosen.every)
    )


def _check_out(out: Path, package: Path) -> None:
    """Only an overlay is ever replaced, and none is written into the package that it mirrors."""
    place = out.absolute()
    if place.resolve().is_relative_to(package.resolve()):
        raise UsageError(f"{out} is inside the vllm that is to be patched")
    if place.is_symlink() or (place.exists() and not (place / launcher.OVERLAY_MARKER).is_file()):
        raise UsageError(
            f"{out} is there and is no overlay: it was not touched", hint="name a folder that is not there"
        )


def _stop_on_conflict(results: Sequence[launcher.PatchResult], version: str, tree: Path) -> None:
    unfit = [result for result in results if result.state not in launcher.FITS and result.patch.required]
    if not unfit:
        return
    lines = [f"{', '.join(result.patch.id for result in unfit)} does not fit vllm {version}: nothing was written"]
    for result in unfit:
        lines += [
            f"  {file.path}:{file.line or 1}: {file.state}: {file.detail}"
            for file in result.files
            if file.state not in ("applies", "applied")
        ]
    raise PatchConflict("\n".join(lines), hint=f"gemmaspec patch verify --tree {tree}")


def _write(package: Path, out: Path, changed: dict[str, bytes]) -> None:
    """Build beside `out`, then put it in its place."""
    place = out.absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as beside:
        built = launcher.build_overlay(package, Path(beside), changed)
        launcher.delete(place)
        if built:
            built.rename(place)
