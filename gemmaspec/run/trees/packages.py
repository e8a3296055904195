"""The usual places of an installed vllm package in images and for interpreters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

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
