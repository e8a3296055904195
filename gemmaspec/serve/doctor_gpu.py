"""The doctor's checks of the GPU, of what it cannot do in this vLLM, and of its driver."""

from __future__ import annotations

from collections.abc import Iterator

from gemmaspec.check.doctor.driver import driver_row
from gemmaspec.check.doctor.gpu import capability_row, gpu_row
from gemmaspec.check.doctor.result import CheckResult, ok
from gemmaspec.core import data
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.releases.facts import facts_for
from gemmaspec.run.stack.speed import untried
from gemmaspec.serve.doctor_subject import DoctorSubject


def gpu(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Check the GPU, what it cannot do in this vLLM, and the driver."""
    if subject.profile:
        wanted = MACHINES[subject.profile.machine].compute_capability
    else:
        wanted = None
    gpus = subject.gpus
    yield gpu_row(gpus, wanted=subject.wants_gpu, capability=wanted)
    if gpus is None or (subject.profile and not subject.wants_gpu):
        return
    if subject.vllm:
        facts = facts_for(subject.vllm.partition("+")[0])
    else:
        facts = None
    if row := capability_row(gpus.capabilities[0] if gpus.capabilities else None, facts):
        yield row
    yield driver_row(
        gpus, require=subject.image.environment.get("NVIDIA_REQUIRE_CUDA") if subject.image else None, **_cuda(subject)
    )


def speed(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Name the patches for speed that this GPU has not measured, and the command that does."""
    if subject.loaded is None or subject.profile is None or not subject.gpus:
        return
    names = untried(subject.profile, Shelf(data.patch_folders()))
    if names:
        message = f"not measured on this GPU: {', '.join(names)}; gemmaspec patch measure {subject.loaded.typed}"
        yield ok("speed patches", message)


def _cuda(subject: DoctorSubject) -> dict[str, str]:
    """Return the required CUDA version, and what requires it."""
    if subject.image:
        return {"cuda": subject.image.environment.get("CUDA_VERSION", ""), "where": "the image"}
    if subject.versions:
        build = subject.versions.torch.partition("+cu")[2]
        return {"cuda": f"{build[:-1]}.{build[-1]}" if build.isdigit() else "", "where": "the runtime's torch"}
    if subject.vllm is None:
        return {"cuda": "", "where": ""}
    facts = facts_for(subject.vllm)
    return {"cuda": facts.cuda if facts else "", "where": f"the released image of vllm {subject.vllm}"}
