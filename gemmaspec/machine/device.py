"""This machine's memory and GPU, as vLLM would find them."""

from __future__ import annotations

from gemmaspec.fit.machine import Device
from gemmaspec.machine import nvidia
from gemmaspec.machine.nvidia import Gpu


def this_cpu() -> Device:
    """Return the machine without its accelerator. Free is MemAvailable: the page cache counts as free."""
    import psutil

    memory = psutil.virtual_memory()
    return Device(name="this machine", memory=memory.total, free=memory.available, cpu=True, here=True)


def this_gpu() -> Device | None:
    """Return the first NVIDIA GPU, or None without one. Raise EnvironmentMissing if nvidia-smi does not answer."""
    found = nvidia.gpus()
    return device_of(found[0], gpus=len(found)) if found else None


def device_of(gpu: Gpu, *, gpus: int = 1) -> Device:
    """Return a GPU of this machine as a device.

    A GB10 has no memory of its own: total and free are then the machine's, as vLLM takes them
    (vllm/utils/mem_utils.py, MemorySnapshot).
    """
    import psutil

    memory = psutil.virtual_memory()
    return Device(
        name=gpu.name,
        memory=memory.total if gpu.memory is None else gpu.memory,
        free=memory.available if gpu.free is None else gpu.free,
        capability=gpu.capability,
        here=True,
        gpus=gpus,
    )
