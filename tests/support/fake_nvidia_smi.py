"""A fake `nvidia-smi` on the PATH, because the tests' machine need not have a GPU: it prints what the real one does."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

import pytest

from gemmaspec.run.machine.nvidia import Gpu

MIB: Final = 2**20
DRIVER: Final = "580.95.05"
_SCRIPT: Final = """#!/bin/sh
case "$1" in
--query-gpu=name*) printf '%s' {rows};;
*) echo '| NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: {cuda} |';;
esac
"""


class FakeNvidiaSmi:
    """A program in a folder of the PATH. It lists no GPU until a test says which."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "nvidia-smi"
        self.lists()
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def lists(self, *gpus: Gpu, cuda: str = "13.0") -> None:
        """List these GPUs from now on, and the newest CUDA that their driver runs."""
        rows = "".join(f"{_row(gpu)}\n" for gpu in gpus)
        self._file.write_text(_SCRIPT.format(rows=shlex.quote(rows), driver=DRIVER, cuda=cuda))
        self._file.chmod(0o755)


def card(name: str, *, gib: float | None, capability: str, free_gib: float | None = None) -> Gpu:
    """Return a GPU with so much memory, all of it free if nothing else is said; None: it shares the CPU's memory."""
    if gib is None:
        return Gpu(name=name, driver=DRIVER, capability=capability, memory=None, free=None)
    free = gib if free_gib is None else free_gib
    return Gpu(
        name=name, driver=DRIVER, capability=capability, memory=round(gib * 1024) * MIB, free=round(free * 1024) * MIB
    )


def _row(gpu: Gpu) -> str:
    """Return its line of `--query-gpu=name,driver_version,compute_cap,memory.total,memory.free`."""
    memory, free = ("[N/A]" if size is None else str(size // MIB) for size in (gpu.memory, gpu.free))
    return f"{gpu.name}, {gpu.driver}, {gpu.capability}, {memory}, {free}"
