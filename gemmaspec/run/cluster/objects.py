"""The core objects of a profile: ConfigMap, Deployment, Service, volume claim, disruption budget, network policy.

The pod of a profile's server: container, volumes, probes, and what it may not do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from gemmaspec.run.cluster.names import CLIENT_LABEL, PLAN_ANNOTATION, labels, selector
from gemmaspec.run.cluster.server import PodServer
from gemmaspec.run.stack.compose import CACHE, CACHE_ENVIRONMENT, OFFLINE, RUN_DIR
from gemmaspec.run.stack.paths import IN_CONTAINER

USER: Final = 1000
"""uid and gid of a server whose profile names none: any but root."""
SHARED_MEMORY: Final = "8Gi"
"""Shared memory of a profile that does not say how large it is."""
API_KEY: Final = "VLLM_API_KEY"
STATE_FILE: Final = f"{RUN_DIR}/probe.json"

_PERIOD_S: Final = 10
_START_S: Final = 3600
"""How long a start may take: 20 minutes are usual for a large model, and the first one also downloads it."""
_PROOF_S: Final = 120
"""The first request may compile kernels."""
_ANSWER_S: Final = 20
_HANG_S: Final = 300
"""A server that gives no answer for so long is started again."""
_DEREGISTER_S: Final = 10
"""How long a pod goes on serving after its end has begun, until every proxy has heard of it."""
_MARGIN_S: Final = 20
_SIZE: Final = re.compile("([0-9.]+)([a-z]+)")
_UNITS: Final = {"b": "", "k": "Ki", "kb": "Ki", "m": "Mi", "mb": "Mi", "g": "Gi", "gb": "Gi"}
_ARCHITECTURES: Final = {"dgx-spark": "arm64"}
"""The CPU of machines that have but one kind; images and nodes of both kinds are in one cluster."""


def pod_spec(server: PodServer) -> dict[str, Any]:
    """Return the PodSpec of a profile's server. It keeps to the restricted Pod Security Standard."""
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        # With links, a Service called vllm would set VLLM_PORT, which vLLM takes for its own.
        "enableServiceLinks": False,
        # The pause process is process 1: as process 1, a Python that is still importing would not hear SIGTERM.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": _DEREGISTER_S + server.profile.container.stop_grace_seconds + _MARGIN_S,
        "securityContext": pod_security(server),
    }
    if server.gpus:
        spec |= gpu_scheduling(server)
    return {**spec, "containers": [container(server)], "volumes": volumes(server)}


def gpu_scheduling(server: PodServer) -> dict[str, Any]:
    """Return what brings a pod to a node with GPUs of the profile's machine."""
    placement: dict[str, Any] = {}
    if server.settings.runtime_class:
        placement["runtimeClassName"] = server.settings.runtime_class
    if architecture := _ARCHITECTURES.get(server.profile.machine):
        placement["nodeSelector"] = {"kubernetes.io/arch": architecture}
    placement["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return placement


def pod_security(server: PodServer) -> dict[str, Any]:
    """Return the pod's security context: a user that is not root, and whose group owns the volume."""
    user, _, group = (server.profile.container.user or f"{USER}:{USER}").partition(":")
    gid = int(group or user)
    return {
        "runAsNonRoot": True,
        "runAsUser": int(user),
        "runAsGroup": gid,
        "fsGroup": gid or USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container(server: PodServer) -> dict[str, Any]:
    """Return the one container."""
    resources = {"resources": {"limits": {"nvidia.com/gpu": str(server.gpus)}}} if server.gpus else {}
    return {
        "name": "vllm",
        "image": server.profile.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [unexpanded(word) for word in server.command],
        "args": [unexpanded(word) for word in server.arguments],
        "env": environment(server),
        "ports": [{"name": "http", "containerPort": server.profile.serve.port, "protocol": "TCP"}],
        **resources,
        **_probes(server),
        "lifecycle": {"preStop": {"exec": {"command": _sleep(server)}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(),
    }


def environment(server: PodServer) -> list[dict[str, Any]]:
    """Return the container's variables; those of `pass_env` are references to a Secret."""
    profile = server.profile
    # Nobody has a name in the image by this uid, and getpass asks these variables first.
    plain = {**CACHE_ENVIRONMENT, "USER": "vllm", "LOGNAME": "vllm", **profile.env}
    variables: list[dict[str, Any]] = [{"name": name, "value": unexpanded(value)} for name, value in plain.items()]
    for name in dict.fromkeys(profile.pass_env):
        if name not in plain:
            # A server without its key would be open to everybody: without the Secret, it does not start.
            reference = {"name": server.secret, "key": name, "optional": name != API_KEY}
            variables.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    return variables


def volumes(server: PodServer) -> list[dict[str, Any]]:
    """Return the pod's volumes: its files, what outlives it, and what a read-only root leaves to be written."""
    return [
        {"name": "stack", "configMap": {"name": server.config_map, "defaultMode": 0o444}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": server.name}},
        {"name": "run", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": shared_memory(server)}},
    ]


def shared_memory(server: PodServer) -> str:
    """Return the size of /dev/shm in Kubernetes' units: Docker's gb are Gi."""
    size = _SIZE.fullmatch((server.profile.container.shm_size or "").lower())
    return f"{size[1]}{_UNITS[size[2]]}" if size else SHARED_MEMORY


def is_offline(server: PodServer) -> bool:
    """Return whether the profile itself keeps the server from the Hub."""
    return server.profile.env.get(OFFLINE, "0").lower() in ("1", "true", "yes", "on")


def unexpanded(text: str) -> str:
    """Return `text` as command, args and env need it: Kubernetes reads $(NAME) there, and $$ as one $."""
    return text.replace("$", "$$")


def _mounts() -> list[dict[str, Any]]:
    return [
        {"name": "stack", "mountPath": IN_CONTAINER, "readOnly": True},
        {"name": "cache", "mountPath": CACHE},
        {"name": "run", "mountPath": RUN_DIR},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - in the container
        {"name": "dshm", "mountPath": "/dev/shm"},  # noqa: S108 - in the container
    ]


def _sleep(server: PodServer) -> list[str]:
    return [server.profile.container.python, "-I", "-c", f"import time; time.sleep({_DEREGISTER_S})"]


def _probes(server: PodServer) -> dict[str, Any]:
    """Return probes that ask real questions; until the first one was drafted, no other one runs."""
    return {
        "startupProbe": {
            "exec": {"command": server.probe("drafted", state=STATE_FILE, deadline_s=_PROOF_S)},
            "periodSeconds": _PERIOD_S,
            "timeoutSeconds": _PROOF_S + _PERIOD_S,
            "failureThreshold": _START_S // _PERIOD_S,
        },
        "readinessProbe": {
            "exec": {"command": server.probe("answers", state=STATE_FILE, deadline_s=_ANSWER_S)},
            "periodSeconds": 2 * _PERIOD_S,
            "timeoutSeconds": _ANSWER_S + _PERIOD_S,
            "failureThreshold": 2,
        },
        "livenessProbe": {
            "exec": {"command": server.probe("answers", state=STATE_FILE, deadline_s=_ANSWER_S)},
            "periodSeconds": 6 * _PERIOD_S,
            "timeoutSeconds": _ANSWER_S + _PERIOD_S,
            "failureThreshold": _HANG_S // (6 * _PERIOD_S),
        },
    }


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
