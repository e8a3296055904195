"""Managed runtimes: one Python environment per RuntimeSpec, complete or missing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import make_folder, state_dir, unwritable, write_whole
from gemmaspec.core.lock.document import Versions
from gemmaspec.core.own_folder import ensure_own
from gemmaspec.run.runtime.import_check import smoke_test
from gemmaspec.run.runtime.install import Destination, install
from gemmaspec.run.runtime.pip_settings import uv_environment
from gemmaspec.run.runtime.release import choose_python, read_release, unpack
from gemmaspec.run.runtime.spec import RuntimeSpec
from gemmaspec.run.runtime.uv import Uv
from gemmaspec.run.trees.versions import interpreter_versions

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
    if interpreter.exists():
        facts = _read_marker(path / _MARKER)
    else:
        facts = {}
    return ManagedRuntime(path=path, interpreter=interpreter, complete=bool(facts), facts=facts)


def versions_at(interpreter: Path, environment: Mapping[str, str]) -> Versions | None:
    """Return the versions where a process's interpreter is; None if that is a runtime which is not complete.

    Raise EnvironmentMissing if there is no vllm.
    """
    path = interpreter.parent.parent
    if path.parent == (state_dir() / "runtimes").resolve():
        if interpreter.exists():
            facts = _read_marker(path / _MARKER)
        else:
            facts = {}
        if facts:
            return Versions(**{name: str(facts.get(name, "unknown")) for name in Versions.model_fields})
        return None
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
    ensure_own()
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
    if running == version or running.startswith(f"{version}."):
        return sys.executable
    return version


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
    if isinstance(facts, dict):
        return facts
    return {}
