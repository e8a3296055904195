"""How fast a GPU copies its own memory."""

from __future__ import annotations

from typing import Final

from gemmaspec import data
from gemmaspec.deploy.views.doctor_subject import DoctorSubject
from gemmaspec.deploy.views.on_gpu import said_on_gpu
from gemmaspec.doctor.result import CheckResult
from gemmaspec.doctor.speed import GpuReading, gpu_memory_row, gpu_not_measured, gpu_reading
from gemmaspec.errors import GemmaspecError
from gemmaspec.profile.machines import MACHINES, machine_of

_ARGUMENTS: Final = ("5", "5")
"""Seconds, and slices of them."""
_LIMIT_S: Final = 300
"""For the import of torch and the first use of CUDA, too."""


def row(subject: DoctorSubject) -> CheckResult:
    """Return how fast the first GPU is, or why that was not measured."""
    try:
        server = subject.server
        if server is None or subject.profile is None:
            return gpu_not_measured("name a profile, whose image or environment has the torch that measures it")
        found = gpu_reading(said_on_gpu(subject, server, data.GPU_SPEED, *_ARGUMENTS, limit_s=_LIMIT_S))
    except GemmaspecError as error:
        return gpu_not_measured(f"{error.message}; {error.hint}" if error.hint else error.message)
    if isinstance(found, GpuReading):
        return gpu_memory_row(found, nominal(found.gpu, subject.profile.machine))
    return gpu_not_measured(found)


def nominal(gpu: str, machine: str) -> float | None:
    """Return what a GPU should give, by its name or else by the profile's machine, in 10^9 bytes per second."""
    return MACHINES[machine_of(gpu) or machine].bandwidth_gb_s
