"""Whether only this user and root can write what a command is about to run from the state folder.

A stack's folder holds what `up`, `restart` and `watch` execute: launch.py, the compose files, the plan, and the
record that says which process to end. Whoever can write there runs code as the user who types the command.

The folders above the state folder are not asked: who may rename it can only put a folder of his own in its place, which
its owner shows.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import name_of, state_dir, sudo_as

_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_ENTERED: Final = stat.S_IXGRP | stat.S_IXOTH


_PARTS: Final = ("stacks", "owners", "runtimes", "known-good", "cache", "tiny")
"""Folders of the state folder from which something is run, or whose files decide what is ended or run."""


def ensure_own(stack: str | None = None) -> None:
    """Raise EnvironmentMissing if another user could have written, or could write, what runs from the state folder.

    `stack`: also look at the files of this stack's folder.
    """
    state = state_dir()
    for path in _beneath(state, stack):
        _ensure_own(path, reachable=path == state or _is_entered(state))


def _beneath(state: Path, stack: str | None) -> Iterator[Path]:
    """Yield what of the state folder a command trusts, each folder before what is in it."""
    yield state
    yield from (state / part for part in _PARTS)
    if stack is None:
        return
    for folder in (state / "stacks" / stack, state / "stacks" / stack / "run"):
        yield folder
        with contextlib.suppress(OSError):
            yield from sorted(folder.iterdir())


def _is_entered(state: Path) -> bool:
    """Return whether others than the owner get into the state folder at all."""
    try:
        return bool(state.stat().st_mode & _ENTERED)
    except OSError:
        return False


def _ensure_own(path: Path, *, reachable: bool) -> None:
    """Raise EnvironmentMissing for what another user owns, or can write if he can reach it; not for what is missing."""
    try:
        seen = path.lstat()
        if path == state_dir():  # a link to a folder on another disk is the user's own choice
            seen = path.stat()
    except OSError:
        return
    whose = name_of(seen.st_uid)
    mode = f"mode {stat.S_IMODE(seen.st_mode):04o}"
    if seen.st_uid not in (0, os.geteuid()):
        raise EnvironmentMissing(
            f"nothing is run from {state_dir()}: {path} belongs to {whose} ({mode}), who can change what would run",
            hint=sudo_as(whose),
        )
    if not reachable or _is_harmless(path, seen.st_mode) or not _others_write(seen):
        return
    raise EnvironmentMissing(
        f"nothing is run from {state_dir()}: users other than {whose} can write to {path} ({mode}), "
        "and so change what would run",
        hint=_way_out(seen.st_uid),
    )


def _way_out(owner: int) -> str:
    """Return what the owner can do, or whom somebody else has to ask."""
    if owner == os.geteuid():
        return f"chmod -R go-w {shlex.quote(str(state_dir()))}    # after a look at what is there"
    return sudo_as(name_of(owner))


def _is_harmless(path: Path, mode: int) -> bool:
    """Return whether others can replace nothing there, though they may write: the launcher has the same rule.

    In a sticky folder they can only add what is theirs, which its owner shows. A state folder that is a mount of its
    own is a container's volume, which Docker and Kubernetes make writable for all.
    """
    if stat.S_ISLNK(mode):
        return True
    sticky = stat.S_ISDIR(mode) and bool(mode & stat.S_ISVTX)
    return sticky or (path == state_dir() and os.path.ismount(path))


def _others_write(seen: os.stat_result) -> bool:
    """Return whether somebody else than the owner can write; a group of the owner alone is nobody else."""
    if seen.st_mode & stat.S_IWOTH:
        return True
    return bool(seen.st_mode & stat.S_IWGRP) and not _is_private_group(seen.st_gid, seen.st_uid)


def _is_private_group(group: int, user: int) -> bool:
    """Return whether a group is the user's own one, of his name and his alone, as Debian, Ubuntu and Fedora make it."""
    try:
        found, owner = grp.getgrgid(group), pwd.getpwuid(user)
    except KeyError:
        return False
    named_alike = found.gr_name == owner.pw_name and owner.pw_gid == group
    return named_alike and set(found.gr_mem) <= {owner.pw_name}
