"""One profile's server as a pod runs it: files, paths, command, name of the model."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core import data
from gemmaspec.core.errors import ProfileError, UsageError
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.run.cluster.names import LIMIT, hashed_name, object_name
from gemmaspec.run.stack.build import render_stack
from gemmaspec.run.stack.compose import CACHE, launcher_command, plan_sha256, probe_command
from gemmaspec.run.stack.paths import PROBE_FILE, Paths, container_paths, is_local
from gemmaspec.run.stack.serve import Served, served_at

_STORAGE: Final = re.compile(r"[1-9][0-9]{0,5}(Mi|Gi|Ti)")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
MOST_REPLICAS: Final = 1000


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Of the cluster: how many servers, how much disk, and what its administrator named."""

    replicas: int = 1
    """Servers of the profile, each on GPUs of its own."""
    storage: str = "100Gi"
    """Size of the volume for models and compiled kernels."""
    runtime_class: str | None = "nvidia"
    """RuntimeClass of pods with a GPU; None where the nodes' default runtime knows GPUs."""
    secret: str | None = None
    """The Secret that holds the variables of `pass_env`; named as the other objects when not given."""
    namespace: str | None = None
    """The namespace of all objects; None for the one of kubectl's context."""

    def __post_init__(self) -> None:
        """Raise UsageError for what Kubernetes would refuse."""
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise UsageError(f"--replicas must be a number from 1 to {MOST_REPLICAS}, not {self.replicas}")
        if not _STORAGE.fullmatch(self.storage):
            raise UsageError(f"--storage must be a size such as 100Gi or 1Ti, not {self.storage!r}")
        for option, name in self._names():
            if name is not None and not (len(name) <= LIMIT and _NAME.fullmatch(name)):
                raise UsageError(
                    f"{option} must be a name of at most {LIMIT} lowercase letters, digits and hyphens, not {name!r}"
                )

    def _names(self) -> tuple[tuple[str, str | None], ...]:
        return ("--runtime-class", self.runtime_class), ("--secret", self.secret), ("--namespace", self.namespace)


MODELS: Final = f"{CACHE}/models"
"""Where a pod finds the folders of local models, `target` and `draft`, on its volume."""
CONFIG_MAP_LIMIT: Final = 1024 * 1024
"""Bytes that the data of a ConfigMap may have (MaxSecretSize in Kubernetes' core types)."""

_DRAIN_FLAG: Final = "--shutdown-timeout"
"""vLLM 0.19.0 and later: seconds that requests get to end after SIGTERM; without it they are cut off."""


@dataclass(frozen=True, kw_only=True)
class PodServer:
    """Everything that the objects of one profile share."""

    profile: Profile
    settings: ClusterSettings
    files: Mapping[str, str]
    """What the ConfigMap holds, by name."""
    served: Served

    @property
    def name(self) -> str:
        """Name of all objects but the ConfigMap."""
        return object_name(self.profile.name)

    @property
    def config_map(self) -> str:
        """Name of the ConfigMap: another one for other files, so that a change is a rollout."""
        return hashed_name(self.name, self.files)

    @property
    def secret(self) -> str:
        """Name of the Secret with the variables of `pass_env`."""
        return self.settings.secret or self.name

    @property
    def plan_sha256(self) -> str:
        """The plan's own digest."""
        return plan_sha256(self.files)

    @property
    def local_models(self) -> tuple[str, ...]:
        """Roles whose model is a folder: somebody has to bring it onto the volume."""
        parts = (("target", self.profile.target), ("draft", self.profile.draft))
        return tuple(role for role, part in parts if part and is_local(part.model))

    @property
    def gpus(self) -> int:
        """GPUs of one pod; 0 on a machine without."""
        serve = self.profile.serve
        wanted = (serve.tensor_parallel_size or 1) * (serve.pipeline_parallel_size or 1) // self.profile.nodes
        if MACHINES[self.profile.machine].gpus:
            return wanted
        return 0

    @property
    def command(self) -> list[str]:
        """The launcher's words. They name the plan: whoever changes the ConfigMap in the cluster gets no server."""
        return launcher_command(self.profile, plan=self.plan_sha256)

    @property
    def arguments(self) -> list[str]:
        """The server's command, which the launcher becomes."""
        words = list(self.served.command)
        if self.served.extra.given(_DRAIN_FLAG):
            return words
        return [*words, _DRAIN_FLAG, str(self.profile.container.stop_grace_seconds)]

    def probe(self, proof: str, *, state: str, deadline_s: int) -> list[str]:
        """Return the command of a probe."""
        return probe_command(self.profile, self.served.model, proof, state=state, deadline_s=deadline_s)


def pod_server(loaded: Loaded, settings: ClusterSettings) -> PodServer:
    """Return the server of a profile.

    Raises ProfileError for what a cluster cannot run (no image, an image of this machine alone, a root user), for a
    ConfigMap that would be too large, and what render_stack raises.
    """
    _refuse(loaded)
    profile = loaded.profile
    served = served_at(profile, _paths(profile))
    files = {**render_stack(loaded, served, form="rank").files}
    files[PROBE_FILE] = data.PROBE.read_text(encoding="utf-8")
    size = sum(len(name) + len(text.encode("utf-8")) for name, text in files.items())
    if size > CONFIG_MAP_LIMIT:
        largest = max(files, key=lambda name: len(files[name]))
        raise ProfileError(
            f"{loaded.file}: the files of this stack have {size} bytes, and a ConfigMap takes {CONFIG_MAP_LIMIT}; "
            f"the largest is {largest}",
            hint="leave out patches that this vLLM does not need, or use a shorter chat template",
        )
    return PodServer(profile=profile, settings=settings, files=dict(sorted(files.items())), served=served)


def _refuse(loaded: Loaded) -> None:
    profile = loaded.profile
    if not profile.image:
        raise ProfileError(f"{loaded.place('image')}: image: is missing, and a pod needs one")
    if profile.image.startswith("sha256:"):
        raise ProfileError(
            f"{loaded.file}: the lock pins an image of this machine alone: {profile.image}",
            hint=f"push the image to a registry, name it in the profile, and: gemmaspec lock {loaded.typed}",
        )
    if (profile.container.user or "1").partition(":")[0].strip("0") == "":
        raise ProfileError(
            f"{loaded.place('container', 'user')}: container.user: is root, and the pod runs as another user",
            hint=f"gemmaspec render {loaded.typed} --set container.user=1000",
        )


def _paths(profile: Profile) -> Paths:
    """Return paths in the pod: local models lie on the volume, as a cluster has no folder of this machine."""
    changes: dict[str, Any] = {}
    if is_local(profile.target.model):
        changes["target"] = f"{MODELS}/target"
    if profile.draft and is_local(profile.draft.model):
        changes["draft"] = f"{MODELS}/draft"
    return dataclasses.replace(container_paths(profile), **changes)
