"""What the doctor examines: the machine, and possibly a profile.

A script that runs on the GPU, in the Python that would run vLLM: it has torch, this one has not.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, ProfileError
from gemmaspec.core.lock.document import Lock, Versions
from gemmaspec.core.profile.engines import uses_image
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.run.engine.docker import DockerEngine
from gemmaspec.run.engine.identity import Identity, image_identity
from gemmaspec.run.engine.process import python_environment
from gemmaspec.run.engine.server import Engine, EngineName, Server
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.lockfile import lock_of, release_by
from gemmaspec.run.machine import readings
from gemmaspec.run.machine.readings import Gpus
from gemmaspec.run.models.hub import Unreachable
from gemmaspec.run.runtime.managed import versions_at
from gemmaspec.serve.prepare import prepare


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
        if self.loaded:
            return self.loaded.profile
        return None

    @property
    def uses_docker(self) -> bool:
        """Whether the docker engine would run it."""
        return uses_image(self.engine.name)

    @property
    def docker(self) -> DockerEngine | None:
        """The engine that would run it, if that is docker's: it can also say what the daemon has."""
        if isinstance(self.engine, DockerEngine):
            return self.engine
        return None

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
        if name and self.uses_docker and self.docker_answers:
            return image_identity(name)
        return None

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
        if self.loaded:
            return release_by(self.loaded.profile, self._lock)
        return None

    @cached_property
    def _lock(self) -> Lock | ProfileError | None:
        if self.loaded:
            return lock_of(self.loaded)
        return None

    @property
    def lock(self) -> Lock | None:
        """The profile's lock, if it exists and can be read."""
        if isinstance(self._lock, ProfileError):
            return None
        return self._lock

    @property
    def bad_lock(self) -> ProfileError | None:
        """The error from reading the lock, if any."""
        if isinstance(self._lock, ProfileError):
            return self._lock
        return None

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
            if self.profile:
                started = stacks.find(self.profile.name)
            else:
                started = None
            return bool(started and stacks.engine_of(started).state(started.server).status == "running")
        except GemmaspecError:
            return False


_IN_CONTAINER: Final = "/gemmaspec/scripts"
_BY_SIGNAL: Final = 128
"""Exit codes of a container above this one are those of signals."""


def said_on_gpu(
    subject: DoctorSubject, server: Server, script: Path, *arguments: str, limit_s: int, whole: bool = False
) -> list[str]:
    """Return the last lines that a script prints on stderr, in a container of the image or with the runtime's Python.

    `limit_s` is for a process; a container has half an hour. `whole`: what a script printed that a signal ended is
    nothing. Raises EnvironmentMissing if it cannot be run.
    """
    if subject.runs_now:
        raise EnvironmentMissing("its server uses the GPU now", hint=f"gemmaspec down {server.name}")
    if subject.uses_docker:
        code, lines = _in_container(subject, server, script, arguments)
        return [] if whole and code > _BY_SIGNAL else lines
    if server.python is None or not server.python.exists():
        raise EnvironmentMissing("the environment with vLLM is missing", hint=f"gemmaspec pull {server.name}")
    command = (str(server.python), str(script), *arguments)
    try:
        done = subprocess.run(
            command, env=python_environment(server), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=limit_s, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        raise EnvironmentMissing(f"{server.python} cannot be run, or took more than {limit_s} s") from None
    return [] if whole and done.returncode < 0 else done.stderr.strip().splitlines()


def _in_container(
    subject: DoctorSubject, server: Server, script: Path, arguments: tuple[str, ...]
) -> tuple[int, list[str]]:
    """Return the exit code of a script, and the last lines of its stderr."""
    if subject.image is None or subject.profile is None:
        raise EnvironmentMissing("the image is not on this machine", hint=f"gemmaspec pull {server.name}")
    if subject.engine.remote:
        raise EnvironmentMissing("the docker daemon is on another machine")
    from gemmaspec.run.engine.once import SharedFolder, run_once  # Docker's SDK is slow to import

    mounts = (SharedFolder(folder=script.parent, at=_IN_CONTAINER, read_only=True),)
    command = (f"{_IN_CONTAINER}/{script.name}", *arguments)
    return run_once(subject.image.id, subject.profile.container.python, command, mounts, gpus=True)
