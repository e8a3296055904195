"""The doctor's checks of what runs a profile: docker, its image, the runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from gemmaspec.check.doctor.result import CheckResult, failed, ok, skipped, warning
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.lock.document import moved
from gemmaspec.core.profile.engines import uses_image
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
        if subject.versions:
            versions = f", vllm {subject.versions.vllm}"
        else:
            versions = ""
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
    if subject.loaded:
        return subject.loaded.typed
    return "PROFILE"
