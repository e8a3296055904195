"""Measured step times and acceptance: those that ship with gemmaspec, and the user's own."""

from __future__ import annotations

import contextlib
import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from gemmaspec.core import data
from gemmaspec.core.errors import PatchError, UsageError
from gemmaspec.core.files import UnreadableFile, read_regular, write_whole
from gemmaspec.core.patching import evidence
from gemmaspec.core.patching.choice import speed_patches
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.machines import ANY_GPU, MACHINES, machine_kind, machine_of
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.resolved.resolve import resolved_of
from gemmaspec.core.rows import Parallel, Row, Run, parse_rows, read_rows
from gemmaspec.run.stack.speed import speed_choice


def measured_folder() -> Path:
    """Return the folder in which `bench --save-measured` keeps what was measured on this machine."""
    return platformdirs.user_config_path("gemmaspec") / "measured"


def own_file(loaded: Loaded) -> Path:
    """Return the file in which `bench --save-measured` keeps a profile's measurements on this machine."""
    return measured_folder() / f"{loaded.profile.name}.json"


def own_rows(loaded: Loaded) -> tuple[Row, ...]:
    """Return what `bench --save-measured` has kept of a profile on as many GPUs; nothing where it kept nothing.

    Raises UsageError for a file that it did not write.
    """
    file = own_file(loaded)
    if file.is_file():
        rows = read_rows(file)
    else:
        rows = ()
    own = resolved_of(loaded.profile).parallel
    return tuple(row for row in rows if row.parallel_as(own))


def store() -> tuple[Run, ...]:
    """Return every run that ships: measurements/, and the evidence of patches for speed."""
    runs = [_read(file) for file in sorted(data.MEASUREMENTS.glob("*.json"))]
    for folder in data.patch_folders():
        runs += _evidence(folder)
    return tuple(runs)


def like(profile: Profile, *, elsewhere: bool = False) -> tuple[Run, ...]:
    """Return the runs of a profile's machine and target; `elsewhere`: of other machines with such GPUs."""
    return tuple(run for run in store() if _fits(run, profile, elsewhere=elsewhere))


def _evidence(folder: Path) -> Iterator[Run]:
    """Yield the cells of a folder's patches; an invalid file is skipped here, and `patch list` names it."""
    for file in sorted(folder.glob("*/evidence.json")):
        with contextlib.suppress(PatchError, UnreadableFile):
            for run in evidence.parse_evidence(file, read_regular(file, limit=evidence.MAX_BYTES, follow=True)):
                rows = tuple(row.model_copy(update={"machine": run.machine, "gpu": run.gpu}) for row in run.rows)
                yield Run(machine=run.machine, targets=run.targets, source=run.source, rows=rows)


def foreign(rows: Sequence[Row], profile: Profile) -> str:
    """Return what rows were measured on where that is not the profile's machine, target and number of GPUs; empty
    where it is, or where they do not say.
    """
    own = resolved_of(profile).parallel
    other_sizes = sorted({f"a server on {row.parallel}" for row in rows if not row.parallel_as(own)})
    machines = {machine_of(row.gpu) or row.gpu if row.gpu else row.machine for row in rows} - {None}
    other = sorted(str(machine) for machine in machines if machine_kind(profile.machine) not in (machine, ANY_GPU))
    target = profile.target.model.lower()
    models = {row.target for row in rows} - {None}
    strange = sorted(str(model) for model in models if not fnmatch.fnmatch(target, str(model).lower()))
    return " and ".join([*other, *strange, *other_sizes])


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The patches for speed that a profile's server has, which distinguish its rows from others."""

    patches: tuple[str, ...]
    idle: frozenset[str]
    """Those of all patches that do nothing without speculation."""
    for_draft: frozenset[str] = frozenset()
    """Those that the profile takes because of its draft, so that its server without one lacks them."""


def taken_by(profile: Profile, shelf: Shelf | None = None) -> Taken:
    """Return the patches for speed that a profile takes. `shelf`: the patches, where they are read already."""
    shelf = shelf or Shelf(data.patch_folders())
    idle = frozenset(patch.id for patch in speed_patches(shelf) if patch.text.speculation_only)
    own = speed_choice(profile, shelf).taken
    alone = speed_choice(profile.model_copy(update={"speculative": None}), shelf).taken
    return Taken(patches=tuple(own), idle=idle, for_draft=frozenset(own) - frozenset(alone))


def of_plan(rows: Sequence[Row], taken: Taken) -> tuple[Row, ...]:
    """Return the rows that were measured with these patches for speed; without a draft, with those that act there."""

    def fits(row: Row) -> bool:
        patches = row.setting.patches
        left_out = taken.idle if row.k == 0 else frozenset[str]()
        return patches is not None and frozenset(patches) - left_out == frozenset(taken.patches) - left_out

    return tuple(row for row in rows if fits(row))


def save(loaded: Loaded, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Save rows of bench for a profile and return the file. A cell that was measured before is replaced.

    Raises UsageError if the file has rows of another machine, because they cannot be combined.
    """
    file = own_file(loaded)
    before = _kept(file)
    for name in ("machine", "gpu"):
        other = {row.get(name) for row in before} - {row.get(name) for row in rows}
        if before and other:
            raise UsageError(
                f"{file} contains rows of another machine ({', '.join(map(str, other))})", hint=f"mv {file} {file}.old"
            )
    fresh = {_cell(row) for row in rows}
    kept = [row for row in before if _cell(row) not in fresh]
    write_whole(file, json.dumps({"schema": 1, "rows": [*kept, *rows]}, indent=1) + "\n", mode=0o600)
    return file


def _kept(file: Path) -> list[Mapping[str, Any]]:
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    parse_rows(text, file=str(file))  # raises where the file is none of ours
    return list(json.loads(text)["rows"])


def _cell(row: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = ("method", "k", "concurrency", "context", "compile", "vllm", "attention_backend", "acceptance_by")
    kept_apart = (*keys, "images", "kv_cache_dtype", "linear_kernel", *Parallel().keys())
    return (*(str(row.get(key)) for key in kept_apart), str(row.get("patches", [])))


def _fits(run: Run, profile: Profile, *, elsewhere: bool) -> bool:
    target, own = profile.target.model.lower(), run.machine == machine_kind(profile.machine)
    there, here = MACHINES.get(run.machine), MACHINES[profile.machine]
    such = bool(there and here.compute_capability and there.compute_capability == here.compute_capability)
    return (such and not own if elsewhere else own) and any(fnmatch.fnmatch(target, name) for name in run.targets)


def _read(file: Path) -> Run:
    text = file.read_text(encoding="utf-8")
    head: Mapping[str, Any] = json.loads(text)
    rows = parse_rows(text, file=str(file))
    return Run(machine=head["machine"], targets=tuple(head["targets"]), source=head["source"], rows=rows)
