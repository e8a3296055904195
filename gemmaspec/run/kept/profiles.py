"""`profile list`: every profile that can be run, where it comes from, and whether it was started here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gemmaspec.core import data
from gemmaspec.core.errors import ProfileError
from gemmaspec.core.files import state_dir
from gemmaspec.core.profile.find import own_folder, profile_names
from gemmaspec.core.profile.load import load_profile


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One profile in the list."""

    name: str
    machine: str
    summary: str
    """Its summary, or the error that makes it invalid."""
    file: str
    source: str
    """`shipped`, `own`, or the folder of GEMMASPEC_PROFILES that contains it."""
    state: str
    """`started` when a stack of it is on this machine, `invalid`, or ``."""


def listed() -> list[Listed]:
    """Return every profile, by name."""
    started = {record.parent.name for record in (state_dir() / "stacks").glob("*/record.json")}
    return [_row(name, file, started) for name, file in profile_names().items()]


def _row(name: str, file: Path, started: set[str]) -> Listed:
    where = {data.PROFILES: "shipped", own_folder(): "own"}
    source = where.get(file.parent, str(file.parent))
    try:
        profile = load_profile(str(file)).profile
    except ProfileError as error:
        why = f"invalid: {error.message.splitlines()[0]}"
        return Listed(name=name, machine="?", summary=why, file=str(file), source=source, state="invalid")
    state = "started" if name in started else ""
    return Listed(
        name=name, machine=profile.machine, summary=profile.summary, file=str(file), source=source, state=state
    )
