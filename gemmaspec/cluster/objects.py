"""The core objects of a profile: ConfigMap, Deployment, Service, volume claim, disruption budget, network policy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from gemmaspec.cluster.names import CLIENT_LABEL, PLAN_ANNOTATION, labels, selector
from gemmaspec.cluster.pod import is_offline, pod_spec
from gemmaspec.cluster.server import PodServer

Object = dict[str, Any]

_ROLLOUT_S: Final = 3900
"""More than the longest start: a rollout that still downloads has not failed."""
_OTHER_ROUTES: Final = re.compile(r"(?i)(.*_proxy|HF_ENDPOINT|PIP_.*INDEX_URL|UV_.*INDEX.*)")
"""Variables that send a server to addresses which no rule here can know."""


def config_map(server: PodServer) -> Object:
    """Return the ConfigMap with the server's files. It cannot be changed; other files are another ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata(server, name=server.config_map), "annotations": plan_annotation(server)},
        "immutable": True,
        "data": dict(server.files),
    }


def deployment(server: PodServer) -> Object:
    """Return the Deployment. One server ends before its successor starts: there is no GPU for both."""
    replicas = server.settings.replicas
    one_by_one = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    spec = pod_spec(server)
    if replicas > 1:
        spec["topologySpreadConstraints"] = [spread(server)]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(server),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": _ROLLOUT_S,
            "strategy": one_by_one if replicas > 1 else {"type": "Recreate"},
            "selector": {"matchLabels": dict(selector(server.profile.name))},
            "template": {
                "metadata": {"labels": dict(labels(server.profile.name)), "annotations": plan_annotation(server)},
                "spec": spec,
            },
        },
    }


def service(server: PodServer) -> Object:
    """Return the Service, on the profile's port, inside the cluster alone."""
    port = {"name": "http", "port": server.profile.serve.port, "targetPort": "http", "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(server),
        "spec": {"type": "ClusterIP", "selector": dict(selector(server.profile.name)), "ports": [port]},
    }


def volume_claim(server: PodServer) -> Object:
    """Return the claim of the volume for models and compiled kernels; several servers share it."""
    several = server.settings.replicas * server.profile.nodes > 1
    mode = "ReadWriteMany" if several else "ReadWriteOnce"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(server),
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": server.settings.storage}}},
    }


def disruption_budget(server: PodServer) -> Object:
    """Return the budget that lets a drain take one server at a time, and never blocks it."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(server),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": dict(selector(server.profile.name))}},
    }


def network_policy(server: PodServer) -> Object:
    """Return who may ask the server (pods of its namespace that carry a label), and whom it may ask."""
    client = {"podSelector": {"matchLabels": {CLIENT_LABEL: "true"}}}
    spec: Object = {
        "podSelector": {"matchLabels": dict(selector(server.profile.name))},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [client], "ports": [{"protocol": "TCP", "port": server.profile.serve.port}]}],
    }
    if (egress := _egress(server)) is not None:
        spec |= {"policyTypes": ["Ingress", "Egress"], "egress": egress}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(server),
        "spec": spec,
    }


def plan_annotation(server: PodServer) -> dict[str, str]:
    """Return which plan an object carries, to compare the servers' own reports with."""
    return {PLAN_ANNOTATION: server.plan_sha256}


def _egress(server: PodServer) -> list[Object] | None:
    """Return the rules for what a server asks: nobody, or names and HTTPS for the Hub; None where nobody can know."""
    if is_offline(server):
        return []
    if any(_OTHER_ROUTES.fullmatch(name) for name in (*server.profile.env, *server.profile.pass_env)):
        return None
    names = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return [{"ports": names}, {"ports": [{"protocol": "TCP", "port": 443}]}]


def spread(server: PodServer) -> Object:
    """Return what brings the profile's pods to different machines, where there are enough."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(selector(server.profile.name))},
    }


def metadata(server: PodServer, *, name: str | None = None) -> Object:
    """Return the metadata of an object: its name and labels."""
    return {"name": name or server.name, "labels": dict(labels(server.profile.name))}


def kustomization(files: Mapping[str, Object], namespace: str | None) -> Object:
    """Return the kustomization of these files; it sets their namespace, and a patch of one's own begins with it."""
    where = {"namespace": namespace} if namespace else {}
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return {**head, **where, "resources": list(files)}
