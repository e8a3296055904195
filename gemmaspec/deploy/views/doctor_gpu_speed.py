"""How fast a GPU copies its own memory, measured by the Python that would run vLLM: it has torch, this one has not."""

from __future__ import annotations

import subprocess
from typing import Final

from gemmaspec import data
from gemmaspec.deploy.views.doctor_subject import DoctorSubject
from gemmaspec.doctor.result import CheckResult
from gemmaspec.doctor.speed import GpuReading, gpu_memory_row, gpu_not_measured, gpu_reading
from gemmaspec.engine.server import Server
from gemmaspec.errors import GemmaspecError
from gemmaspec.profile.machines import MACHINES, machine_of

_ARGUMENTS: Final = ("5", "5")
"""Seconds, and slices of them."""
_LIMIT_S: Final = 300
"""For the import of torch and the first use of CUDA, too."""
_IN_CONTAINER: Final = "/gemmaspec/launcher"


def row(subject: DoctorSubject) -> CheckResult:
    """Return how fast the first GPU is, or why that was not measured."""
    try:
        server = subject.server
        if server is None or subject.profile is None:
            return gpu_not_measured("name a profile, whose image or environment has the torch that measures it")
        if subject.runs_now:
            return gpu_not_measured(f"its server uses the GPU now; gemmaspec down {server.name}")
        found = _in_container(subject, server) if subject.uses_docker else _as_process(server)
    except GemmaspecError as error:
        return gpu_not_measured(error.message)
    if isinstance(found, GpuReading):
        return gpu_memory_row(found, nominal(found.gpu, subject.profile.machine))
    return gpu_not_measured(found)


def nominal(gpu: str, machine: str) -> float | None:
    """Return what a GPU should give, by its name or else by the profile's machine, in 10^9 bytes per second."""
    return MACHINES[machine_of(gpu) or machine].bandwidth_gb_s


def _in_container(subject: DoctorSubject, server: Server) -> GpuReading | str:
    if subject.image is None or subject.profile is None:
        return f"the image is not on this machine; gemmaspec pull {server.name}"
    if subject.engine.remote:
        return "the docker daemon is on another machine"
    from gemmaspec.engine.once import SharedFolder, run_once  # Docker's SDK is slow to import

    mounts = (SharedFolder(folder=data.GPU_SPEED.parent, at=_IN_CONTAINER, read_only=True),)
    script = f"{_IN_CONTAINER}/{data.GPU_SPEED.name}"
    _, said = run_once(subject.image.id, subject.profile.container.python, (script, *_ARGUMENTS), mounts, gpus=True)
    return gpu_reading(said)


def _as_process(server: Server) -> GpuReading | str:
    if server.python is None or not server.python.exists():
        return "the environment with vLLM is missing; gemmaspec pull makes it"
    command = (str(server.python), str(data.GPU_SPEED), *_ARGUMENTS)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return f"{server.python} cannot be run, or took more than {_LIMIT_S} s"
    return gpu_reading(done.stderr.strip().splitlines())
