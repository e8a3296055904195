"""Values for llm-d's Helm chart llm-d-modelservice: one node, N replicas, with our command."""

from __future__ import annotations

from typing import Any, Final

from gemmaspec.cluster.names import labels
from gemmaspec.cluster.objects import Object, plan_annotation
from gemmaspec.cluster.pod import pod_spec
from gemmaspec.cluster.server import PodServer

_PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")
_POD_FIELDS: Final = (
    "automountServiceAccountToken",
    "shareProcessNamespace",
    "runtimeClassName",
)
"""Fields of the pod that the chart has no value for; they go through its extraConfig."""


def values(server: PodServer) -> Object:
    """Return the values. ConfigMap and volume are files of their own, as Helm would expand the chat template."""
    pod = pod_spec(server)
    serve = server.profile.serve
    return {
        "multinode": False,
        "accelerator": {"type": "nvidia" if server.gpus else "cpu"},
        "modelArtifacts": {
            "name": server.model,
            "uri": _model_uri(server),
            "labels": {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": server.name, **_labels(server)},
        },
        "routing": {"servicePort": serve.port, "proxy": {"enabled": False}},
        "prefill": {"create": False},
        "decode": {
            "create": True,
            "replicas": server.settings.replicas,
            "parallelism": {"tensor": max(1, server.gpus), "data": 1},
            "podAnnotations": plan_annotation(server),
            "enableServiceLinks": pod["enableServiceLinks"],
            "terminationGracePeriodSeconds": pod["terminationGracePeriodSeconds"],
            "podSecurityContext": pod["securityContext"],
            "extraConfig": as_template({key: pod[key] for key in _POD_FIELDS if key in pod}),
            **{key: pod[key] for key in ("nodeSelector", "tolerations") if key in pod},
            "volumes": pod["volumes"],
            "containers": [_container(pod["containers"][0])],
        },
    }


def as_template(value: Any) -> Any:
    """Return a value as the parts of the chart need it that Helm expands: `{{` begins an expression there."""
    if isinstance(value, str):
        return value.replace("{{", '{{ "{{" }}')
    if isinstance(value, list):
        return [as_template(item) for item in value]
    if isinstance(value, dict):
        return {key: as_template(item) for key, item in value.items()}
    return value


def _container(container: dict[str, Any]) -> dict[str, Any]:
    keys = ("name", "image", "imagePullPolicy", "command", "args", "securityContext", "resources", *_PROBES)
    expanded = {key: container[key] for key in ("lifecycle", "terminationMessagePolicy")}
    return {
        **{key: container[key] for key in keys if key in container},
        "modelCommand": "custom",
        "mountModelVolume": False,
        "env": as_template(container["env"]),
        "ports": container["ports"],
        "extraConfig": as_template(expanded),
        "volumeMounts": container["volumeMounts"],
    }


def _labels(server: PodServer) -> dict[str, str]:
    """Return the labels that the chart does not set itself."""
    return {key: text for key, text in labels(server.profile.name).items() if key != "app.kubernetes.io/managed-by"}


def _model_uri(server: PodServer) -> str:
    if "target" in server.local_models:
        return f"pvc://{server.name}/models/target"
    return f"hf://{server.profile.target.model}"
