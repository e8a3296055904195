"""Which vLLM, torch and transformers are installed somewhere, from their files alone: nothing is imported or run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from gemmaspec.engine import endpoint
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.launcher import launch
from gemmaspec.trees.image import Archive, answering, candidates, find_package, looking_into
from gemmaspec.trees.tree import LARGEST_FILE, UNKNOWN

_VERSION: Final = re.compile(r"[0-9A-Za-z.+!_-]{1,64}")
_STATED: Final = re.compile(rb"^__version__\s*=\s*[\"'](" + _VERSION.pattern.encode() + rb")[\"']", re.MULTILINE)
_FILES: Final = {"torch": "torch/version.py", "transformers": "transformers/__init__.py"}


def image_versions(ref: str, *, python: str = "") -> dict[str, str]:
    """`vllm`, `torch` and `transformers` in an image that is on this machine; `unknown` where it is not stated.

    `python` is the interpreter that would run vLLM, if known. Raises EnvironmentMissing: no daemon, no such image,
    no vllm in it.
    """
    where = endpoint.find()
    client = endpoint.connect(where)
    try:
        with answering(where, ref), looking_into(client, ref) as archive:
            config = client.images.get(ref).attrs.get("Config") or {}
            return _versions(list(candidates(config, python)), archive, f"the image {ref}")
    finally:
        client.close()


def interpreter_versions(python: Path) -> dict[str, str]:
    """The same for an interpreter of this machine. Raises EnvironmentMissing when it has no vllm."""
    return _versions(list(_beside(python)), _on_disk, str(python))


def _beside(python: Path) -> Iterator[str]:
    """Its own environment first, then what it would see as the system's Python."""
    own = python.parent.parent
    for folder in sorted((own / "lib").glob("python3*/*-packages")):
        yield f"{folder}/vllm"
    yield from candidates({}, str(python))


def _versions(folders: list[str], archive: Archive, place: str) -> dict[str, str]:
    package = find_package(folders, archive)
    if package is None:
        raise EnvironmentMissing(
            f"no vllm package was found in {place}",
            hint="set container.python (for an image) or runtime.python to the interpreter that has vllm",
        )
    vllm = launch.stated_version(archive(f"{package}/_version.py") or b"") or UNKNOWN
    vllm = vllm if _VERSION.fullmatch(vllm) else UNKNOWN  # an image may state anything
    # A vllm that is installed as a checkout lies elsewhere than its dependencies.
    sites = [str(PurePosixPath(folder).parent) for folder in dict.fromkeys([package, *folders])]
    return {"vllm": vllm, **{name: _stated(sites, path, archive) for name, path in _FILES.items()}}


def _stated(sites: Iterable[str], path: str, archive: Archive) -> str:
    for site in sites:
        if found := _STATED.search(archive(f"{site}/{path}") or b""):
            return found[1].decode("ascii")
    return UNKNOWN


def _on_disk(path: str) -> bytes | None:
    try:
        with Path(path).open("rb") as file:
            return file.read(LARGEST_FILE)
    except OSError:
        return None
