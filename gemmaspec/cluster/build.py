"""A profile as the files of a folder that `kubectl apply -k` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gemmaspec import __version__
from gemmaspec.cluster import kserve, llmd, lws, objects
from gemmaspec.cluster.objects import Object
from gemmaspec.cluster.server import PodServer, pod_server
from gemmaspec.cluster.settings import Settings, To
from gemmaspec.cluster.text import yaml_text
from gemmaspec.errors import ProfileError
from gemmaspec.profile.load import Loaded

KUSTOMIZATION: Final = "kustomization.yaml"
VALUES: Final = "values.yaml"

_SHARED: Final[Mapping[str, Callable[[PodServer], Object]]] = {
    "configmap.yaml": objects.config_map,
    "volume.yaml": objects.volume_claim,
}
_OBJECTS: Final[Mapping[To, Mapping[str, Callable[[PodServer], Object]]]] = {
    "kubernetes": {
        **_SHARED,
        "deployment.yaml": objects.deployment,
        "service.yaml": objects.service,
        "disruption-budget.yaml": objects.disruption_budget,
        "network-policy.yaml": objects.network_policy,
    },
    "lws": {
        **_SHARED,
        "leader-worker-set.yaml": lws.leader_worker_set,
        "service.yaml": lws.service,
        "disruption-budget.yaml": objects.disruption_budget,
        "network-policy.yaml": lws.network_policy,
    },
    "kserve": {**_SHARED, "inference-service.yaml": kserve.inference_service},
    "llm-d-values": _SHARED,
}
FILES: Final = tuple(dict.fromkeys((*(name for each in _OBJECTS.values() for name in each), KUSTOMIZATION, VALUES)))
"""Every file that one of the targets has."""


@dataclass(frozen=True, kw_only=True)
class Manifests:
    """A rendered profile for a cluster."""

    server: PodServer
    objects: Mapping[str, Object]
    """What a cluster is given, by file."""
    files: Mapping[str, str]
    """Everything that is written, by name."""
    values: Object | None = None
    """For Helm, if that is the target."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every file that manifests may have."""
        return FILES


def build_manifests(loaded: Loaded, to: To, settings: Settings) -> Manifests:
    """Render a profile for a cluster. Raises ProfileError for another number of nodes, and what pod_server raises."""
    _check_nodes(loaded, to)
    server = pod_server(loaded, settings, port=kserve.PORT if to == "kserve" else None)
    found = {name: make(server) for name, make in _OBJECTS[to].items()}
    head = f"Rendered by gemmaspec {__version__} from the profile {server.profile.name}: {server.profile.summary}"
    files = {name: yaml_text([one], head=head) for name, one in found.items()}
    files[KUSTOMIZATION] = yaml_text([objects.kustomization(found)], head=head)
    values = llmd.values(server) if to == "llm-d-values" else None
    if values is not None:
        files[VALUES] = yaml_text([values], head=head)
    return Manifests(server=server, objects=found, files=files, values=values)


def _check_nodes(loaded: Loaded, to: To) -> None:
    """Raise ProfileError unless the target can run a server on as many machines."""
    nodes, place = loaded.profile.nodes, loaded.place("nodes")
    if nodes > 1 and to != "lws":
        raise ProfileError(
            f"{place}: nodes: is {nodes}, and {to} runs a server on one machine",
            hint=f"gemmaspec render {loaded.typed} --to lws",
        )
    if nodes == 1 and to == "lws":
        raise ProfileError(
            f"{place}: nodes: is 1, and a LeaderWorkerSet is for one server on several machines",
            hint=f"gemmaspec render {loaded.typed} --to kubernetes --replicas 2    # or: --set nodes=2",
        )
