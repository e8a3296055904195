"""Where vLLM is installed, and its version and those of torch and transformers, read without importing them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gemmaspec.core import launcher
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.trees.tree import LARGEST_FILE, UNKNOWN

_PREFIXES: Final = ("/usr/local", "/opt/venv", "/usr", "/opt/conda", "/app/.venv", "/workspace/.venv", "/venv")
_PYTHONS: Final = tuple(f"python3.{minor}" for minor in (12, 13, 11, 10, 14, 15))
_SOURCES: Final = ("/workspace/vllm", "/vllm-workspace", "/app/vllm", "/opt/vllm", "/vllm", "/workspace", "/app")
"""Checkouts that images install in editable form."""

Archive = Callable[[str], "bytes | None"]
"""From an absolute path in the image to a regular file's bytes; None if it is missing."""


def candidates(config: Mapping[str, Any], python: str) -> Iterator[str]:
    """Yield possible places of an image's vllm/, the likeliest first, by its environment and the usual places."""
    environment = dict(entry.partition("=")[::2] for entry in config.get("Env") or ())
    path = environment.get("PATH", "").split(":")
    interpreters = [python] if python.startswith("/") else []
    bins = [str(PurePosixPath(interpreter).parent) for interpreter in interpreters] + path
    prefixes = [environment.get("VIRTUAL_ENV", ""), environment.get("CONDA_PREFIX", "")]
    prefixes += [folder.removesuffix("/bin") for folder in bins if folder.endswith("/bin")]
    sites = [folder for folder in environment.get("PYTHONPATH", "").split(":") if folder]
    for prefix in dict.fromkeys(prefix for prefix in (*prefixes, *_PREFIXES) if prefix.startswith("/")):
        sites += [f"{prefix}/lib/{name}/{kind}" for name in _PYTHONS for kind in ("dist-packages", "site-packages")]
    sites += ["/usr/lib/python3/dist-packages", str(config.get("WorkingDir") or ""), *_SOURCES]
    yield from (f"{site}/vllm" for site in dict.fromkeys(sites) if site.startswith("/"))


def find_package(folders: Iterable[str], archive: Archive) -> str | None:
    """Return the first of the folders that contains a package."""
    return next((folder for folder in folders if archive(f"{folder}/__init__.py") is not None), None)


_VERSION: Final = re.compile(r"[0-9A-Za-z.+!_-]{1,64}")
_STATED: Final = re.compile(rb"^__version__\s*=\s*[\"'](" + _VERSION.pattern.encode() + rb")[\"']", re.MULTILINE)
_LOCATE: Final = """\
import importlib.util, json, sys
del sys.path[0]
found = {name: importlib.util.find_spec(name) for name in ("vllm", "torch", "transformers")}
print(json.dumps({name: spec.origin if spec else None for name, spec in found.items()}))
"""
"""A script for the interpreter that would run vLLM. It finds the packages without importing them."""
_PATIENCE_S: Final = 30
_FILES: Final = {"torch": "torch/version.py", "transformers": "transformers/__init__.py"}


def interpreter_versions(python: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the versions for a local interpreter. Raise EnvironmentMissing if it has no vllm.

    The interpreter itself locates the packages, as for the launcher, so that .pth files and the PYTHONPATH of
    `environment` count. If it cannot run, its folders are searched.
    """
    origins = _located(python, environment or {})
    if origins is None:
        return versions_in(list(_beside(python)), _on_disk, str(python))
    if "vllm" not in origins:
        raise EnvironmentMissing(
            f"{python} has no vllm", hint="set runtime.python to the interpreter that has vllm, or remove it"
        )
    package = origins["vllm"].parent
    files = {"torch": "version.py", "transformers": "__init__.py"}
    stated = {name: _stated_in(origins[name].parent / file) for name, file in files.items() if name in origins}
    unknown = dict.fromkeys(files, UNKNOWN)
    return {"vllm": _checked(launcher.vllm_version(package)), **unknown, **stated}


def _located(python: Path, environment: Mapping[str, str]) -> dict[str, Path] | None:
    """Return where an interpreter would import each package from; None if it cannot run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [str(python), "-c", _LOCATE],
            env={**kept, **environment},
            cwd="/",
            capture_output=True,
            timeout=_PATIENCE_S,
            check=True,
        )
        origins = json.loads(done.stdout.splitlines()[-1])
        return {str(name): Path(str(origin)) for name, origin in origins.items() if origin}
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, AttributeError):
        return None


def _stated_in(file: Path) -> str:
    stated = _STATED.search(_on_disk(str(file)) or b"")
    if stated:
        return stated[1].decode("ascii")
    return UNKNOWN


def _checked(version: str) -> str:
    if _VERSION.fullmatch(version):
        return version
    return UNKNOWN


def _beside(python: Path) -> Iterator[str]:
    """Yield the folders of its own environment, then those of the system's Python."""
    prefix = python.parent.parent
    for folder in sorted((prefix / "lib").glob("python3*/*-packages")):
        yield f"{folder}/vllm"
    yield from candidates({}, str(python))


def versions_in(folders: list[str], archive: Archive, place: str) -> dict[str, str]:
    package = find_package(folders, archive)
    if package is None:
        raise EnvironmentMissing(
            f"cannot find a vllm package in {place}",
            hint="set container.python (for an image) or runtime.python to the interpreter that has vllm",
        )
    vllm = _checked(launcher.stated_version(archive(f"{package}/_version.py") or b"") or UNKNOWN)
    # A vllm that is installed as a checkout is in another folder than its dependencies.
    sites = [str(PurePosixPath(folder).parent) for folder in dict.fromkeys([package, *folders])]
    return {"vllm": vllm, **{name: _stated(sites, path, archive) for name, path in _FILES.items()}}


def _stated(sites: Iterable[str], path: str, archive: Archive) -> str:
    for site in sites:
        if stated := _STATED.search(archive(f"{site}/{path}") or b""):
            return stated[1].decode("ascii")
    return UNKNOWN


def _on_disk(path: str) -> bytes | None:
    try:
        with Path(path).open("rb") as file:
            return file.read(LARGEST_FILE)
    except OSError:
        return None


def installed_vllm(python: Path) -> str | None:
    """Return the vLLM in the folders of an interpreter, which is not run; None if there is none, or no version."""
    try:
        version = versions_in(list(_beside(python)), _on_disk, str(python))["vllm"]
    except EnvironmentMissing:
        return None
    if version == UNKNOWN:
        return None
    return version
