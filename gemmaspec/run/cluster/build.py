"""A profile as the files of a folder that `kubectl apply -k` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gemmaspec import __version__
from gemmaspec.core.errors import ProfileError
from gemmaspec.core.profile.load import Loaded
from gemmaspec.run.cluster.objects import Object, files, objects_of
from gemmaspec.run.cluster.server import ClusterSettings, PodServer, pod_server
from gemmaspec.run.cluster.text import yaml_text

KUSTOMIZATION: Final = "kustomization.yaml"


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
        return (*files(), KUSTOMIZATION)


def build_manifests(loaded: Loaded, settings: ClusterSettings) -> Manifests:
    """Render a profile for a cluster. Raises ProfileError for several machines, and what pod_server raises."""
    if loaded.profile.nodes > 1:
        raise ProfileError(
            f"{loaded.place('nodes')}: nodes: is {loaded.profile.nodes}, and a pod runs a server on one machine",
            hint=f"gemmaspec up {loaded.typed} --hosts HOST,HOST",
        )
    server = pod_server(loaded, settings)
    made, where = objects_of(server), {"namespace": settings.namespace} if settings.namespace else {}
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    # it sets the namespace of all, and a patch of one's own begins with it
    every = {**made, KUSTOMIZATION: {**kind, **where, "resources": list(made)}}
    head = f"Rendered by gemmaspec {__version__} from the profile {server.profile.name}: {server.profile.summary}"
    texts = {name: yaml_text([object_], head=head) for name, object_ in every.items()}
    return Manifests(server=server, objects=made, files=texts)
