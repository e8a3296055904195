"""`doctor`: can this profile start here, and how to fix it if not? Checks everything, starts and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gemmaspec.check.doctor.result import CheckResult, failed
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.engine.choose import choose_engine
from gemmaspec.run.engine.docker import DockerEngine
from gemmaspec.run.engine.server import EngineName
from gemmaspec.serve import doctor_engine, doctor_gpu, doctor_machine, doctor_memory
from gemmaspec.serve.doctor_subject import DoctorSubject

Check = Callable[[DoctorSubject], Iterator[CheckResult]]


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The result of every check."""

    profile: str | None
    engine: EngineName
    why: str
    rows: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing prevents a start."""
        return not any(row.state == "failed" for row in self.rows)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("docker", doctor_engine.docker),
    ("nvidia runtime", doctor_engine.nvidia_runtime),
    ("lock", doctor_engine.lock),
    ("image", doctor_engine.image),
    ("runtime", doctor_engine.runtime),
    ("gpu", doctor_gpu.gpu),
    ("speed patches", doctor_gpu.speed),
    ("memory", doctor_memory.memory),
    ("models", doctor_machine.models),
    ("disks", doctor_machine.disks),
    ("port", doctor_machine.port),
    ("clock", doctor_machine.clock),
    ("limits", doctor_machine.limits),
)


def doctor(profile: str | None, *, engine: EngineName | None, overrides: Sequence[str] = ()) -> Examined:
    """Check the machine, or all that a profile needs. Raises UsageError and ProfileError for the profile."""
    if profile:
        loaded = load_profile(profile, overrides=overrides)
    else:
        loaded = None
    try:
        chosen, why = choose_engine(engine, profile=loaded.profile if loaded else None)
    except EnvironmentMissing:  # docker is asked for or needed and does not answer, which its own row says
        why = (
            "docker: requested"
            if engine
            else "docker: the profile has no vLLM release for the process engine (runtime.vllm)"
        )
        chosen = DockerEngine()
    subject = DoctorSubject(loaded=loaded, engine=chosen, forced=engine, overrides=overrides)
    rows = tuple(row for name, check in CHECKS for row in _rows(name, check, subject))
    return Examined(profile=loaded.profile.name if loaded else None, engine=chosen.name, why=why, rows=rows)


def _rows(name: str, check: Check, subject: DoctorSubject) -> Iterator[CheckResult]:
    """Run one check and yield its rows; a check that cannot be finished has failed."""
    try:
        yield from check(subject)
    except GemmaspecError as error:
        if subject.loaded:
            shown = f"gemmaspec profile show {subject.loaded.typed}"
        else:
            shown = "docker info"
        yield failed(name, error.message, error.hint or shown)
