"""A stack on disk: write it atomically, and compare it with the existing files."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from gemmaspec.core.errors import UsageError
from gemmaspec.core.files import UnreadableFile, make_folder, read_regular, unwritable, write_whole
from gemmaspec.run.stack.build import STACK_FILES
from gemmaspec.run.stack.paths import TEMPLATE_FILE
from gemmaspec.run.stack.serve import SERVICE

MANIFEST: Final = ".gemmaspec-rendered.json"
"""The file with the sha256 of each file that was rendered into a user's folder, by name."""


class Rendered(Protocol):
    """What can be written into a folder: a stack, or manifests for a cluster."""

    @property
    def files(self) -> Mapping[str, str]:
        """The text of each file by name."""

    @property
    def names(self) -> Sequence[str]:
        """Every file that something of its kind may have."""


def write(stack: Rendered, folder: Path) -> list[str]:
    """Write the stack into a user's folder, record what was written, and return the names of its files."""
    sums = {name: sum_ for name, sum_ in _manifest(folder).items() if name not in stack.names}
    written = write_files(stack.files, folder, names=stack.names)
    for name, text in sorted(stack.files.items()):
        sums[name] = _sha256(text.encode("utf-8"))
    write_whole(folder / MANIFEST, json.dumps({"schema": 1, "files": sums}, indent=1) + "\n")
    return written


def strangers(stack: Rendered, folder: Path) -> list[Path]:
    """Return the files in `folder` that the stack would overwrite and gemmaspec did not write, or somebody changed."""
    ours = _manifest(folder)
    changed = []
    for name in stack.names:
        file = folder / name
        if not os.path.lexists(file):
            continue
        try:
            content = read_regular(file)
        except UnreadableFile:
            content = None
        same = content is not None and content == stack.files.get(name, "").encode("utf-8")
        if content is None or not (same or ours.get(name) == _sha256(content)):
            changed.append(file)
    return changed


def _manifest(folder: Path) -> Mapping[str, str]:
    try:
        manifest = json.loads(read_regular(folder / MANIFEST) or b"{}")
        return {str(name): str(sum_) for name, sum_ in manifest.get("files", {}).items()}
    except (UnreadableFile, ValueError, AttributeError, RecursionError):
        return {}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_files(files: Mapping[str, str], folder: Path, *, names: Sequence[str] = STACK_FILES) -> list[str]:
    """Write a stack's files into `folder` and return their names.

    Every file is written completely to the same disk before the first one is renamed. Files of `names` that this
    stack does not have are removed; other files in the folder stay. Raise EnvironmentMissing if the disk is full or
    the folder is not writable.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    place = folder
    try:
        make_folder(folder)
        with _staging(folder) as staging:
            for name, text in files.items():
                place = folder / name
                write_synced(staging / name, text)
                (staging / name).chmod(_mode(name, files))
            for name in files:
                place = folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                (staging / name).replace(place)
        for name in sorted(set(names) - set(files)):
            place = folder / name
            place.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(place, error) from None
    return sorted(files)


def _mode(name: str, files: Mapping[str, str]) -> int:
    """Return a file's mode: a template is its owner's alone, unless the server's container has a user to read it."""
    if name == "compose.yaml":  # with --single-file it holds the template
        if TEMPLATE_FILE in files[name] and TEMPLATE_FILE not in files:
            return 0o600
        return 0o644
    server = files.get("compose.yaml", "").partition(f"\n  {SERVICE}:")[0]
    if name == TEMPLATE_FILE and "\n    user:" not in server:
        return 0o600
    return 0o644


def difference(stack: Rendered, folder: Path) -> str:
    """Return a unified diff from the files in `folder` to those that would be written; empty if they are equal."""
    lines: list[str] = []
    for name in stack.names:
        there = read_file(folder / name).splitlines(keepends=True)
        rendered = stack.files.get(name, "").splitlines(keepends=True)
        lines += difflib.unified_diff(there, rendered, fromfile=str(folder / name), tofile=f"rendered/{name}")
    return "".join(lines)


@contextlib.contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    staging = Path(tempfile.mkdtemp(dir=folder, prefix=".rendering-"))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_synced(path: Path, text: str) -> None:
    """Write a new file, and its folder, to the disk. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_file(path: Path) -> str:
    """Return the text of a file of a stack; empty if it is missing or unreadable."""
    try:
        return (read_regular(path) or b"").decode("utf-8")
    except (UnreadableFile, UnicodeDecodeError):
        return ""
