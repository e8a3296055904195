"""A three-way merge of one file, by git."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.errors import EnvironmentMissing

_MOST_CONFLICTS: Final = 127
"""`git merge-file` exits with the number of conflicts, cut there; more is a failure of git's own."""


@dataclass(frozen=True, kw_only=True)
class Merged:
    """The merged file, with conflict markers (diff3: the base too) when there are conflicts."""

    data: bytes
    conflicts: int


def merge(*, base: bytes, ours: bytes, theirs: bytes, labels: tuple[str, str, str]) -> Merged:
    """Carry the edit from `base` to `ours` over to `theirs`; the labels (ours, base, theirs) name the markers.

    Raise EnvironmentMissing when there is no git, or it cannot merge these (they are binary).
    """
    with tempfile.TemporaryDirectory(prefix="gemmaspec-") as folder:
        files = [Path(folder) / name for name in ("ours", "base", "theirs")]
        for file, data in zip(files, (ours, base, theirs), strict=True):
            file.write_bytes(data)
        names = [word for label in labels for word in ("-L", label)]
        command = ["git", "merge-file", "-p", "--diff3", *names, *map(str, files)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            raise EnvironmentMissing("git is needed to merge, and it is not on PATH", hint="git --version") from None
    if not 0 <= done.returncode <= _MOST_CONFLICTS:
        raise EnvironmentMissing(f"git cannot merge: {done.stderr.decode('utf-8', 'replace').strip()}")
    return Merged(data=done.stdout, conflicts=done.returncode)
