"""The Python environment of probes: torch, transformers and vLLM's top-level imports, but no vLLM and no GPU.

Every release imports with these packages; the probes do not need vLLM's compiled parts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gemmaspec.core.files import state_dir, unwritable, write_whole
from gemmaspec.core.own_folder import ensure_own
from gemmaspec.run.runtime.managed import held_lock, site_packages
from gemmaspec.run.runtime.pip_settings import uv_environment
from gemmaspec.run.runtime.shims import define_torchvision_ops
from gemmaspec.run.runtime.uv import Uv

TORCH: Final = "torch==2.13.0"
TRANSFORMERS: Final = "transformers>=5.14,<5.15"
"""The newest release that reads Gemma 4's configs as vLLM up to 0.30 does."""
LIGHT: Final = (
    "aiohttp", "blake3", "cachetools", "cbor2", "cloudpickle", "compressed-tensors", "diskcache", "einops", "fastapi",
    "gguf", "ijson", "llguidance", "mcp", "mistral-common", "msgspec", "openai", "openai-harmony",
    "opencv-python-headless", "orjson", "partial-json-parser", "prometheus-client", "psutil", "py-cpuinfo",
    "pybase64", "pydantic", "pyzmq", "regex", "scipy", "sentencepiece", "setproctitle", "tiktoken", "torchvision",
    "uvloop", "xgrammar",
)  # fmt: skip
"""The packages that vLLM's modules import at the top level, over all releases."""
TRITON: Final = "triton==3.7.1"
"""What vLLM 0.32 has on a GPU. It lies apart, because vLLM behaves differently where it can be imported."""
_NEWEST_PYTHON: Final = (3, 13)
"""vLLM up to 0.19 needs a Python below 3.14."""


def prove_python(*, progress: Callable[[str], None]) -> Path:
    """Return the interpreter of the environment; build it first if it is missing (about half a minute, 1.5 GB).

    Raise EnvironmentMissing if packages cannot be found or installed; an incomplete environment is never used.
    """
    return _complete(f"prove-{_key()}", [TORCH, TRANSFORMERS, *LIGHT], _install, progress) / "bin" / "python"


def triton_folder(interpreter: Path, *, progress: Callable[[str], None], requirement: str = TRITON) -> Path:
    """Return a folder with Triton for probes of numbers; fill it first if it is missing (200 MB to read).

    `requirement`: another release of it, pinned by ==. Raise EnvironmentMissing as prove_python does; Triton is
    published for Linux alone.
    """

    def install(uv: Uv, folder: Path) -> None:
        progress(f"installing {requirement} for Triton's interpreter")
        uv.run("pip", "install", "--python", str(interpreter), "--no-deps", "--target", str(folder), requirement)

    version = requirement.rpartition("==")[2]
    return _complete(f"triton-{version}-py{_version()}-{platform.machine()}", [requirement], install, progress)


def _complete(
    name: str, packages: list[str], install: Callable[[Uv, Path], None], progress: Callable[[str], None]
) -> Path:
    """Return a folder of the state that is complete; the first process to come fills it, others wait."""
    ensure_own()
    folder = state_dir() / "runtimes" / name
    marker = folder / "complete.json"
    if marker.is_file():
        return folder
    waiting = "waiting for another gemmaspec process that builds the environment for probes"
    with held_lock(folder.parent / f".{name}.lock", waiting=lambda: progress(waiting)) as lock:
        if not marker.is_file():
            _build(folder, lock, install, progress)
            write_whole(marker, json.dumps({"schema": 1, "packages": packages}) + "\n")
    return folder


def _key() -> str:
    facts = [TORCH, TRANSFORMERS, *LIGHT, _python(), platform.machine()]
    return f"py{_version()}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]}"


def _version() -> str:
    return ".".join(str(part) for part in min(sys.version_info[:2], _NEWEST_PYTHON))


def _python() -> str:
    """Return the running Python unless it is too new, so that no other is downloaded."""
    if sys.version_info[:2] <= _NEWEST_PYTHON:
        return sys.executable
    return _version()


def _build(folder: Path, lock: int, install: Callable[[Uv, Path], None], progress: Callable[[str], None]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        install(Uv(folder=folder, environment=uv_environment(), progress=progress, keep_open=(lock,)), folder)
    except OSError as error:
        raise unwritable(folder, error) from None
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
        raise


def _install(uv: Uv, folder: Path) -> None:
    uv.progress(f"building an environment for probes: {TORCH}, {TRANSFORMERS}")
    uv.run("venv", "--allow-existing", "--no-project", "--python", _python(), str(folder))
    interpreter = folder / "bin" / "python"
    overrides = folder / "overrides.txt"
    overrides.write_text("triton ; sys_platform == 'never'\n", encoding="utf-8")  # see TRITON
    target = ("--python", str(interpreter), "--link-mode", "copy", "--overrides", str(overrides))
    uv.run("pip", "install", *target, TORCH, TRANSFORMERS, *LIGHT)
    define_torchvision_ops(site_packages(interpreter))
