"""Install a vLLM release with uv into an environment or a plain folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gemmaspec.run.runtime import shims
from gemmaspec.run.runtime.release import OVERRIDES, Release, cpu_requirements, cuda_requirements
from gemmaspec.run.runtime.spec import RuntimeSpec
from gemmaspec.run.runtime.uv import Uv


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The destination of packages: uv's arguments, the resulting folder, and a folder for temporary files."""

    arguments: tuple[str, ...]
    packages: Path
    scratch: Path
    link_mode: Literal["copy", "hardlink"] = "copy"
    """Whether to hard-link into uv's cache; only for a temporary folder, because an edit would change the cache."""


def install(spec: RuntimeSpec, release: Release, *, uv: Uv, into: Destination) -> None:
    """Install vLLM with its dependencies and the profile's own bounds. Raise EnvironmentMissing if uv fails."""
    if spec.device == "cuda":
        requirements = [spec.vllm_requirement, *cuda_requirements(release.requires), *spec.package_requirements]
        _pip_install(uv, into, requirements)
        return
    overrides = into.scratch / "overrides.txt"
    overrides.write_text("".join(f"{line}\n" for line in OVERRIDES), encoding="utf-8")
    requirements = [*cpu_requirements(release.requires), *spec.package_requirements]
    _pip_install(uv, into, ["--overrides", str(overrides), *requirements])
    _pip_install(uv, into, ["--no-deps", spec.vllm_requirement])
    shims.apply(into.packages, release.version)


def _pip_install(uv: Uv, into: Destination, arguments: Sequence[str]) -> None:
    uv.run("pip", "install", "--link-mode", into.link_mode, *into.arguments, *arguments)
