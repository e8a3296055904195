"""A three-way merge of one file, with git."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.errors import EnvironmentMissing

_MOST_CONFLICTS: Final = 127
"""`git merge-file` exits with the number of conflicts up to this limit; a larger code is a failure of git."""


@dataclass(frozen=True, kw_only=True)
class Merged:
    """The merged file, with conflict markers (in diff3 style, with the base) if there are conflicts."""

    data: bytes
    conflicts: int


def merge(*, base: bytes, ours: bytes, theirs: bytes, labels: tuple[str, str, str]) -> Merged:
    """Apply the edit from `base` to `ours` to `theirs`; the labels (ours, base, theirs) name the markers.

    Raise EnvironmentMissing without git, or if git cannot merge the files because they are binary.
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
            raise EnvironmentMissing("git is not on PATH, but a merge needs it", hint="git --version") from None
    if not 0 <= done.returncode <= _MOST_CONFLICTS:
        raise EnvironmentMissing(f"git cannot merge the files: {done.stderr.decode('utf-8', 'replace').strip()}")
    return Merged(data=done.stdout, conflicts=done.returncode)
