"""The doctor's checks of what runs a profile: docker, its image, the runtime, the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gemmaspec.check.doctor.driver import driver_row
from gemmaspec.check.doctor.gpu import capability_row, gpu_row
from gemmaspec.check.doctor.result import CheckResult, failed, ok, skipped, warning
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.lock.document import moved
from gemmaspec.core.profile.engines import uses_image
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.releases.facts import facts_for
from gemmaspec.run.engine import compose
from gemmaspec.run.engine.docker import DockerEngine
from gemmaspec.run.engine.pulling import not_pulled_here
from gemmaspec.run.runtime.managed import describe
from gemmaspec.serve.doctor_subject import DoctorSubject
from gemmaspec.serve.prepare import runtime_spec

_SILENT: Final = "the docker daemon does not answer"


def docker(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Check the command, the daemon and Compose; they are optional if the process engine can run the profile."""
    if subject.forced and not uses_image(subject.forced):
        yield skipped("docker", f"the {subject.forced} engine was requested")
        return
    if subject.profile and not subject.uses_docker and not subject.docker_answers:
        yield skipped("docker", "no daemon answers; `up` will run this profile with the process engine")
        return
    engine = subject.docker or DockerEngine()
    needed = subject.uses_docker
    yield _tried("docker client", compose.client_version, needed=needed)
    yield _tried("docker daemon", lambda: f"{engine.ping()} at {engine.endpoint}", needed=needed)
    yield _tried("docker compose", compose.ensure_compose_v2, needed=needed)


def nvidia_runtime(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Check whether docker can use GPUs."""
    if subject.docker is None:
        return
    if not subject.docker_answers:
        yield skipped("nvidia runtime", _SILENT)
        return
    if not subject.wants_gpu and (subject.profile or subject.gpus is None):
        yield skipped("nvidia runtime", "no GPU is needed" if subject.profile else "there is no GPU here")
        return
    subject.docker.ensure_nvidia()
    yield ok("nvidia runtime", "docker can use GPUs")


def lock(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Warn about a lock that cannot be read; only `up` without --locked ignores it."""
    if subject.bad_lock:
        yield warning("lock", subject.bad_lock.message, subject.bad_lock.hint)


def image(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Check whether the image is on this machine and is the one that the lock pins."""
    profile = subject.profile
    if profile is None or not subject.uses_docker:
        return
    if not subject.docker_answers:
        yield skipped("image", _SILENT)
        return
    if not profile.image:
        yield failed(
            "image", "the profile has no image, and the docker engine needs one", "set `image:` in the profile"
        )
    elif subject.image is None:
        why = not_pulled_here(profile.image)
        pulled = f"{profile.image} is not on this machine; `up` will pull it"
        yield failed("image", why.message, why.hint) if why else warning("image", pulled, _pull(subject))
    else:
        digest = subject.image.digest or f"{subject.image.id}, built on this machine"
        versions = f", vllm {subject.versions.vllm}" if subject.versions else ""
        yield ok("image", f"{profile.image} is {digest}{versions}")
        yield from _locked_image(subject)


def _locked_image(subject: DoctorSubject) -> Iterator[CheckResult]:
    locked, now = subject.lock.image if subject.lock else None, subject.image
    if locked is None or now is None:
        return
    if locked.id == now.id or (locked.digest and locked.digest == now.digest):
        yield ok("locked image", "matches the lock")
        return
    message = f"the lock pins {locked.digest or locked.id}; `up` without --locked runs the local image"
    yield warning("locked image", message, f"gemmaspec up {_profile(subject)} --locked    # or lock again")


def runtime(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Check the process engine's environment."""
    if subject.loaded is None or subject.uses_docker:
        return
    versions = subject.versions
    if versions:
        yield ok("runtime", f"vllm {versions.vllm}, torch {versions.torch}, transformers {versions.transformers}")
        facts = {f"versions.{name}": version for name, version in versions.model_dump().items()}
        for change in moved(subject.lock.facts(), facts) if subject.lock else ():
            yield warning("locked runtime", str(change), f"gemmaspec lock {_profile(subject)}")
    elif subject.loaded.profile.runtime.python:
        python = subject.loaded.profile.runtime.python
        yield failed("runtime", f"{python} has no vllm", f"{python} -m pip install vllm")
    elif not describe(runtime_spec(subject.loaded)).complete:
        yield warning("runtime", "not built yet; `up` will build it", _pull(subject, engine=True))


def gpu(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Check the GPU, what it cannot do in this vLLM, and the driver."""
    wanted = MACHINES[subject.profile.machine].compute_capability if subject.profile else None
    gpus = subject.gpus
    yield gpu_row(gpus, wanted=subject.wants_gpu, capability=wanted)
    if gpus is None or (subject.profile and not subject.wants_gpu):
        return
    facts = facts_for(subject.vllm.partition("+")[0]) if subject.vllm else None
    if row := capability_row(gpus.capabilities[0] if gpus.capabilities else None, facts):
        yield row
    yield driver_row(
        gpus, require=subject.image.environment.get("NVIDIA_REQUIRE_CUDA") if subject.image else None, **_cuda(subject)
    )


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


def _tried(name: str, look: Callable[[], str], *, needed: bool) -> CheckResult:
    try:
        return ok(name, look())
    except GemmaspecError as error:
        if needed:
            return failed(name, error.message, error.hint)
        return warning(name, f"{error.message}; `up` will use the process engine", error.hint)


def _pull(subject: DoctorSubject, *, engine: bool = False) -> str:
    return f"gemmaspec pull {_profile(subject)}{' --engine process' if engine else ''}"


def _profile(subject: DoctorSubject) -> str:
    return subject.loaded.typed if subject.loaded else "PROFILE"
