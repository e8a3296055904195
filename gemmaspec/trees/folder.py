"""A folder that holds vllm/: a checkout, an unpacked wheel, a site-packages."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gemmaspec import launcher
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.trees.tree import LARGEST_FILE, Needed, Tree, TreeSource


def open_folder(folder: Path, needed: Needed) -> Tree:
    """Read a folder. Raises EnvironmentMissing: no vllm/ in it, a link that leads out of it, no plain file."""
    package = package_in(folder)
    version = launcher.vllm_version(package)
    files = {path: read_inside(folder, path) for path in needed(version)}
    return Tree(place=TreeSource(kind="tree", ref=str(folder)), vllm=version, files=files)


def package_in(folder: Path) -> Path:
    """The absolute path of the folder's vllm/."""
    package = folder.absolute() / "vllm"
    if not (package / "__init__.py").is_file():
        nested = (folder / "__init__.py").is_file() and folder.absolute().name == "vllm"
        raise EnvironmentMissing(
            f"{folder} holds no vllm/ package",
            hint=f"name the folder above it: {folder.absolute().parent}" if nested else f"ls {folder}",
        )
    resolve_inside(folder, "vllm")
    return package


def read_inside(folder: Path, path: str) -> bytes | None:
    """A plain file below a folder; None when there is none of that name."""
    real = resolve_inside(folder, path)
    try:
        found = real.stat()
        if stat.S_ISDIR(found.st_mode):
            return None
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_FILE:
            raise EnvironmentMissing(f"{folder / path} is no plain file of at most {LARGEST_FILE} bytes")
        return real.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EnvironmentMissing(f"{folder / path} cannot be read: {error.strerror}") from None


def resolve_inside(folder: Path, path: str) -> Path:
    """Where a path below a folder leads, which must be below it too."""
    root = os.path.realpath(folder)
    real = os.path.realpath(folder / path)
    if os.path.commonpath([root, real]) != root:
        raise EnvironmentMissing(f"{folder / path} is a link that leads out of {folder}, to {real}")
    return Path(real)
