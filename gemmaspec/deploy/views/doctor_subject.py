"""What the doctor examines: the machine, and possibly a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gemmaspec.deploy.kept import stacks
from gemmaspec.deploy.kept.lockfile import read_lock, release_of
from gemmaspec.deploy.start.prepare import prepare
from gemmaspec.deploy.start.resolve import runtime_versions
from gemmaspec.doctor.gpu import Gpus
from gemmaspec.engine.docker import DockerEngine
from gemmaspec.engine.identity import Identity, image_identity
from gemmaspec.engine.server import Engine, EngineName, Server
from gemmaspec.errors import EnvironmentMissing, GemmaspecError, ProfileError
from gemmaspec.lock.document import Lock, Versions
from gemmaspec.machine import readings
from gemmaspec.models.hub import Unreachable
from gemmaspec.profile.engines import uses_image
from gemmaspec.profile.load import Loaded
from gemmaspec.profile.machines import MACHINES
from gemmaspec.profile.model import Profile
from gemmaspec.trees.versions import image_versions


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
                return Versions(**image_versions(self.image.id, python=self.profile.container.python))
            return runtime_versions(self.loaded) if self.loaded and not self.uses_docker else None
        except GemmaspecError:
            return None

    @property
    def vllm(self) -> str | None:
        """The vLLM release that would run, if known."""
        if self.versions:
            return self.versions.vllm
        return release_of(self.loaded) if self.loaded else None

    @cached_property
    def _lock(self) -> Lock | ProfileError | None:
        try:
            return read_lock(self.loaded) if self.loaded else None
        except ProfileError as error:
            return error

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
