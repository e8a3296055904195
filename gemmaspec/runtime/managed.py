"""Managed runtimes: one Python environment per RuntimeSpec, complete or missing."""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec.errors import EnvironmentMissing
from gemmaspec.files import state_dir, unwritable, write_whole
from gemmaspec.runtime.lock import held_lock
from gemmaspec.runtime.pip_settings import uv_environment
from gemmaspec.runtime.spec import RuntimeSpec
from gemmaspec.runtime.uv import Uv

_NEEDED_BYTES: Final = {"cpu": 4_000_000_000, "cuda": 14_000_000_000}
_MARKER: Final = "complete.json"
_WAITING: Final = "waiting for another gemmaspec process that builds this runtime"


@dataclass(frozen=True, kw_only=True)
class Runtime:
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


def describe(spec: RuntimeSpec) -> Runtime:
    """Return the runtime for `spec`. A folder without its marker or its Python is not complete."""
    path = runtime_dir(spec)
    interpreter = path / "bin" / "python"
    facts = _read_marker(path / _MARKER) if interpreter.exists() else {}
    return Runtime(path=path, interpreter=interpreter, complete=bool(facts), facts=facts)


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


def remove_runtime(spec: RuntimeSpec) -> bool:
    """Remove a runtime, complete or not; return whether it existed."""
    return remove_folder(runtime_dir(spec))


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
    except OSError as error:
        _remove(path)
        raise unwritable(path, error) from None
    except BaseException:
        _remove(path)
        raise
    progress(f"runtime ready in {facts['seconds']} s: {path}")


def _install(spec: RuntimeSpec, path: Path, uv: Uv) -> dict[str, Any]:
    # What parses requirements is slow to import, and most commands only ask for a runtime's folder.
    from gemmaspec.runtime.install import Destination, install, smoke_test
    from gemmaspec.runtime.release import choose_python, read_release, unpack

    scratch = path / "scratch"
    uv.progress(f"resolving {spec.vllm_requirement}")
    release = read_release(unpack(uv, spec.vllm_requirement, scratch / "wheel"), spec.distribution)
    python = choose_python(spec.python_version, release, fixed=spec.python is not None)
    uv.progress(f"creating a Python {python} environment with {spec.vllm_requirement}")
    uv.run("venv", "--allow-existing", "--no-project", "--python", _python_request(python), str(path))
    interpreter = path / "bin" / "python"
    into = Destination(arguments=("--python", str(interpreter)), packages=_site_packages(interpreter), scratch=scratch)
    install(spec, release, uv=uv, into=into)
    shutil.rmtree(scratch)
    uv.progress("checking that the packages load")
    return {"schema": 1, "key": spec.key, **smoke_test([str(interpreter)], device=spec.device)}


def _python_request(version: str) -> str:
    """Return the running interpreter if it has this version, so that nothing is downloaded; else the version."""
    running = platform.python_version()
    return sys.executable if running == version or running.startswith(f"{version}.") else version


def _site_packages(interpreter: Path) -> Path:
    command = [str(interpreter), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


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
