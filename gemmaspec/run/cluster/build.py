"""A profile as the files of a folder that `kubectl apply -k` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gemmaspec import __version__
from gemmaspec.core.errors import ProfileError
from gemmaspec.core.profile.load import Loaded
from gemmaspec.run.cluster import objects
from gemmaspec.run.cluster.names import yaml_text
from gemmaspec.run.cluster.objects import Object
from gemmaspec.run.cluster.server import ClusterSettings, PodServer, pod_server

KUSTOMIZATION: Final = "kustomization.yaml"

_OBJECTS: Final[Mapping[str, Callable[[PodServer], Object]]] = {
    "configmap.yaml": objects.config_map,
    "volume.yaml": objects.volume_claim,
    "deployment.yaml": objects.deployment,
    "service.yaml": objects.service,
    "disruption-budget.yaml": objects.disruption_budget,
    "network-policy.yaml": objects.network_policy,
}
FILES: Final = (*_OBJECTS, KUSTOMIZATION)
"""Every file that is written."""


@dataclass(frozen=True, kw_only=True)
class Manifests:
    """A rendered profile for a cluster."""

    server: PodServer
    objects: Mapping[str, Object]
    """What a cluster is given, by file."""
    files: Mapping[str, str]
    """Everything that is written, by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every file that manifests may have."""
        return FILES


def build_manifests(loaded: Loaded, settings: ClusterSettings) -> Manifests:
    """Render a profile for a cluster. Raises ProfileError for several machines, and what pod_server raises."""
    if loaded.profile.nodes > 1:
        raise ProfileError(
            f"{loaded.place('nodes')}: nodes: is {loaded.profile.nodes}, and a pod runs a server on one machine",
            hint=f"gemmaspec up {loaded.typed} --hosts HOST,HOST",
        )
    server = pod_server(loaded, settings)
    made = {name: make(server) for name, make in _OBJECTS.items()}
    head = f"Rendered by gemmaspec {__version__} from the profile {server.profile.name}: {server.profile.summary}"
    files = {name: yaml_text([object_], head=head) for name, object_ in made.items()}
    files[KUSTOMIZATION] = yaml_text([objects.kustomization(made, settings.namespace)], head=head)
    return Manifests(server=server, objects=made, files=files)
