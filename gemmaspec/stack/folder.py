"""A stack on disk: written all or nothing, compared with what is there."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from gemmaspec.errors import UsageError
from gemmaspec.files import UnreadableFile, read_regular, unwritable
from gemmaspec.stack.build import STACK_FILES, Stack


def write(stack: Stack, folder: Path) -> list[str]:
    """Write the stack into `folder` and return the names of its files; see write_files."""
    return write_files(stack.files, folder)


def write_files(files: Mapping[str, str], folder: Path) -> list[str]:
    """Write a stack's files into `folder` and return their names.

    Every file is complete on the same disk before the first one takes its place. Files of a stack that this
    one does not have are removed; anything else in the folder is left alone.
    Raises EnvironmentMissing when the disk is full or the folder cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    place = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _staging(folder) as staging:
            for name, text in files.items():
                place = folder / name
                _write_synced(staging / name, text)
            for name in files:
                place = folder / name
                (staging / name).replace(place)
        for name in sorted(set(STACK_FILES) - set(files)):
            place = folder / name
            place.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(place, error) from None
    return sorted(files)


def difference(stack: Stack, folder: Path) -> str:
    """A unified diff from what is in `folder` to what would be written; empty when they agree."""
    return "".join(
        line
        for name in STACK_FILES
        for line in difflib.unified_diff(
            read_file(folder / name).splitlines(keepends=True),
            stack.files.get(name, "").splitlines(keepends=True),
            fromfile=str(folder / name),
            tofile=f"rendered/{name}",
        )
    )


@contextlib.contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    staging = Path(tempfile.mkdtemp(dir=folder, prefix=".rendering-"))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_file(path: Path) -> str:
    """Return the text of a file of a stack; empty when there is none that can be read."""
    try:
        return (read_regular(path) or b"").decode("utf-8")
    except (UnreadableFile, UnicodeDecodeError):
        return ""
