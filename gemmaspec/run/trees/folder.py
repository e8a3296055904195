"""A folder that contains vllm/: a checkout, an unpacked wheel, a site-packages."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gemmaspec.core import launcher
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.trees.tree import LARGEST_FILE, Needed, Tree, TreeSource


def open_folder(folder: Path, needed: Needed) -> Tree:
    """Read a folder. Raise EnvironmentMissing if vllm/ is missing, a link leaves it, or a file is not a regular one."""
    package = package_in(folder)
    version = launcher.vllm_version(package)
    files = {path: read_inside(folder, path) for path in needed(version)}
    return Tree(place=TreeSource(kind="tree", ref=str(folder)), vllm=version, files=files)


def package_in(folder: Path) -> Path:
    """Return the absolute path of the folder's vllm/."""
    package = folder.absolute() / "vllm"
    if not (package / "__init__.py").is_file():
        nested = (folder / "__init__.py").is_file() and folder.absolute().name == "vllm"
        raise EnvironmentMissing(
            f"{folder} does not contain a vllm/ package",
            hint=f"name its parent folder: {folder.absolute().parent}" if nested else f"ls {folder}",
        )
    resolve_inside(folder, "vllm")
    return package


def read_inside(folder: Path, path: str) -> bytes | None:
    """Return a regular file below a folder; None if it is missing."""
    real = resolve_inside(folder, path)
    try:
        status = real.stat()
        if stat.S_ISDIR(status.st_mode):
            return None
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_FILE:
            raise EnvironmentMissing(f"{folder / path} must be a regular file of at most {LARGEST_FILE} bytes")
        return real.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EnvironmentMissing(f"cannot read {folder / path}: {error.strerror}") from None


def resolve_inside(folder: Path, path: str) -> Path:
    """Return the real path of a path below a folder. Raise EnvironmentMissing if it leaves the folder.

    The files of a vllm/ may all be links into one other folder of that name, as uv makes them into its cache.
    """
    root = os.path.realpath(folder)
    real = os.path.realpath(folder / path)
    linked = Path(os.path.realpath(folder / "vllm/__init__.py")).parent.parent
    beside = os.path.realpath((folder / path).parent)
    is_cached = Path(real) == linked / path and os.path.commonpath([root, beside]) == root
    if os.path.commonpath([root, real]) != root and not is_cached:
        raise EnvironmentMissing(f"{folder / path} is a link that leaves {folder}, to {real}")
    return Path(real)
