"""What a profile does not say, since it depends on the cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gemmaspec.cluster.names import LIMIT
from gemmaspec.errors import UsageError

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
