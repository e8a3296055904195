"""What the doctor examines: the machine, and possibly a profile.

The doctor's checks of what runs a profile: docker, its image, the runtime, the GPU.

A script that runs on the GPU, in the Python that would run vLLM: it has torch, this one has not.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from gemmaspec.check.doctor.result import CheckResult, capability_row, driver_row, failed, gpu_row, ok, skipped, warning
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, ProfileError
from gemmaspec.core.lock.document import Lock, Versions, moved
from gemmaspec.core.profile.find import uses_image
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.releases.facts import facts_for
from gemmaspec.run.engine import lines
from gemmaspec.run.engine.docker import DockerEngine
from gemmaspec.run.engine.identity import Identity, image_identity
from gemmaspec.run.engine.image import not_pulled_here
from gemmaspec.run.engine.server import Engine, EngineName, Server
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.models import lock_of, release_by
from gemmaspec.run.machine import readings
from gemmaspec.run.machine.readings import Gpus
from gemmaspec.run.models.hub import Unreachable
from gemmaspec.run.runtime.managed import describe, versions_at
from gemmaspec.serve.prepare import prepare, runtime_spec


@dataclass(kw_only=True)
class DoctorSubject:
    """Readings that several checks share; each is taken once, when first needed."""

    loaded: Loaded | None
    engine: Engine
    forced: EngineName | None
    overrides: Sequence[str] = ()
    to_fetch: dict[str, int] = field(default_factory=dict)
    """Bytes of target and draft that must still be fetched, by model, as far as known."""
    silent_hub: tuple[str, Unreachable] | None = None
    """The model that the Hub did not answer for, and the error: it is asked once, not for each model."""

    @property
    def profile(self) -> Profile | None:
        """The profile, if there is one."""
        return self.loaded.profile if self.loaded else None

    @property
    def uses_docker(self) -> bool:
        """Whether the docker engine would run it."""
        return uses_image(self.engine.name)

    @property
    def docker(self) -> DockerEngine | None:
        """The engine that would run it, if that is docker's: it can also say what the daemon has."""
        return self.engine if isinstance(self.engine, DockerEngine) else None

    @cached_property
    def docker_answers(self) -> bool:
        """Whether a docker daemon answers; if not, rows that depend on it are skipped."""
        try:
            (self.docker or DockerEngine()).ping()
        except EnvironmentMissing:
            return False
        return True

    @property
    def wants_gpu(self) -> bool:
        """Whether the profile is for a machine with GPUs."""
        return bool(self.profile and MACHINES[self.profile.machine].gpus)

    @cached_property
    def gpus(self) -> Gpus | None:
        """The GPUs that nvidia-smi shows."""
        return readings.gpus()

    @cached_property
    def image(self) -> Identity | None:
        """The profile's image, if the daemon has it."""
        name = self.profile.image if self.profile else None
        return image_identity(name) if name and self.uses_docker and self.docker_answers else None

    @cached_property
    def versions(self) -> Versions | None:
        """The versions installed where the profile would run; None if that does not exist yet."""
        try:
            if self.image and self.profile:
                from gemmaspec.run.trees.image import image_versions  # docker's SDK is slow to import

                return Versions(**image_versions(self.image.id, python=self.profile.container.python))
            if self.uses_docker or self.server is None or self.server.python is None:
                return None
            return versions_at(self.server.python, self.server.environment)
        except GemmaspecError:
            return None

    @property
    def vllm(self) -> str | None:
        """The vLLM release that would run, if known."""
        if self.versions:
            return self.versions.vllm
        return release_by(self.loaded.profile, self._lock) if self.loaded else None

    @cached_property
    def _lock(self) -> Lock | ProfileError | None:
        return lock_of(self.loaded) if self.loaded else None

    @property
    def lock(self) -> Lock | None:
        """The profile's lock, if it exists and can be read."""
        return None if isinstance(self._lock, ProfileError) else self._lock

    @property
    def bad_lock(self) -> ProfileError | None:
        """The error from reading the lock, if any."""
        return self._lock if isinstance(self._lock, ProfileError) else None

    @cached_property
    def server(self) -> Server | None:
        """The server that would be started. Raises ProfileError for a profile that this engine cannot run."""
        if self.loaded is None:
            return None
        return prepare(self.loaded, engine=self.engine.name, remote=self.engine.remote)[0]

    @cached_property
    def runs_now(self) -> bool:
        """Whether a stack of this name is already running and using its resources."""
        try:
            started = stacks.find(self.profile.name) if self.profile else None
            return bool(started and stacks.engine_of(started).state(started.server).status == "running")
        except GemmaspecError:
            return False


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
    yield _tried("docker client", lines.client_version, needed=needed)
    yield _tried("docker daemon", lambda: f"{engine.ping()} at {engine.endpoint}", needed=needed)
    yield _tried("docker compose", lines.ensure_compose_v2, needed=needed)


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


_IN_CONTAINER: Final = "/gemmaspec/scripts"


def said_on_gpu(subject: DoctorSubject, server: Server, script: Path, *arguments: str, limit_s: int) -> list[str]:
    """Return the last lines that a script prints on stderr, in a container of the image or with the runtime's Python.

    `limit_s` is for a process; a container has half an hour. Raises EnvironmentMissing if it cannot be run.
    """
    if subject.runs_now:
        raise EnvironmentMissing("its server uses the GPU now", hint=f"gemmaspec down {server.name}")
    if subject.uses_docker:
        return _in_container(subject, server, script, arguments)
    if server.python is None or not server.python.exists():
        raise EnvironmentMissing("the environment with vLLM is missing", hint=f"gemmaspec pull {server.name}")
    command = (str(server.python), str(script), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise EnvironmentMissing(f"{server.python} cannot be run, or took more than {limit_s} s") from None
    return done.stderr.strip().splitlines()


def _in_container(subject: DoctorSubject, server: Server, script: Path, arguments: tuple[str, ...]) -> list[str]:
    if subject.image is None or subject.profile is None:
        raise EnvironmentMissing("the image is not on this machine", hint=f"gemmaspec pull {server.name}")
    if subject.engine.remote:
        raise EnvironmentMissing("the docker daemon is on another machine")
    from gemmaspec.run.engine.once import SharedFolder, run_once  # Docker's SDK is slow to import

    mounts = (SharedFolder(folder=script.parent, at=_IN_CONTAINER, read_only=True),)
    command = (f"{_IN_CONTAINER}/{script.name}", *arguments)
    return run_once(subject.image.id, subject.profile.container.python, command, mounts, gpus=True)[1]
