"""The doctor's check of the memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmaspec.check.doctor.machine import memory_row
from gemmaspec.check.doctor.result import CheckResult, failed, ok, skipped
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.profile.device import size_as_called
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.serve.doctor_subject import DoctorSubject

if TYPE_CHECKING:
    from gemmaspec.check.fit.document import Fit


def memory(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Check the memory against what `fit` computes; without a profile, report what is there."""
    if subject.loaded is None:
        import psutil

        memory = psutil.virtual_memory()
        yield memory_row(memory.total, memory.available)
        return
    if subject.runs_now:
        yield skipped("memory", f"{subject.loaded.profile.name} is running and has its memory")
        return
    from gemmaspec.check.use_cases.fit import FitRequest, fit

    try:
        answer = fit(FitRequest(profile=str(subject.loaded.file), overrides=subject.overrides))
    except GemmaspecError as error:
        yield skipped("memory", f"unknown: {error.message}")
        return
    device = answer.plan.device
    here = "" if device.here else f", treated as a {device.name}"
    if any(model and model.source == "shipped" for model in (answer.plan.models.target, answer.plan.models.draft)):
        here += ", computed from shapes that ship with gemmaspec"
    if answer.fits:
        gpus, size = answer.plan.demand.tensor_parallel, size_as_called(device)
        if gpus > 1:
            fits = f"fits on {gpus} GPUs of {size} each"
        else:
            fits = f"fits into {size}"
        yield ok("memory", f"{fits}{here}")
        yield from _idle_gpus(subject, gpus)
    fix = _fix(answer, subject.loaded.typed)
    for problem in answer.problems:
        yield failed("memory", f"{problem}{here}", fix)


def _idle_gpus(subject: DoctorSubject, used: int) -> Iterator[CheckResult]:
    """Yield what is left of this machine's GPUs, and the page that says what they can do."""
    assert subject.loaded
    there = len(subject.gpus.names) if subject.gpus else 0
    profile = subject.loaded.profile
    idle = there - used * profile.replicas
    if profile.nodes == 1 and MACHINES[profile.machine].gpus and idle >= used:
        servers = there // used
        yield ok("gpus", f"{idle} of {there} stay idle; --set replicas={servers} starts {servers} servers")


def _fix(answer: Fit, profile: str) -> str:
    """Return the first change that makes it fit."""
    change = next((advice.change for advice in answer.advice if advice.starts), None)
    if change:
        return f"gemmaspec up {profile} {change}"
    return f"gemmaspec fit {profile}"
