"""A PATH of a machine that lacks most programs, for scripts that set a machine up."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path


def linked(folder: Path, names: Iterable[str]) -> Path:
    """Make a folder with these programs of this machine, and no others."""
    folder.mkdir()
    for name in names:
        place = shutil.which(name)
        assert place
        (folder / name).symlink_to(place)
    return folder


def fake_program(programs: Path, name: str, script: str) -> None:
    """Put a shell script in the place of a program that cannot be had in the wanted state."""
    (programs / name).unlink(missing_ok=True)
    (programs / name).write_text(f"#!/bin/sh\n{script}\n")
    (programs / name).chmod(0o755)
