"""KServe's LLMInferenceService (v1alpha2): one node, N replicas, with our command."""

from __future__ import annotations

from typing import Any, Final

from gemmaspec.cluster.names import labels
from gemmaspec.cluster.objects import Object, plan_annotation
from gemmaspec.cluster.pod import container, pod_spec
from gemmaspec.cluster.server import PodServer
from gemmaspec.stack.compose import HF_HOME

PORT: Final = 8000
"""KServe's presets send requests to this port, whatever the profile's own is."""
_CONTAINER: Final = "main"
"""The container that KServe's presets describe; another one would run next to it."""


def inference_service(server: PodServer) -> Object:
    """Return the LLMInferenceService. It has no field for speculation: our command brings that along."""
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": server.name, "labels": dict(labels(server.profile.name))},
        "spec": {
            "replicas": server.settings.replicas,
            "labels": dict(labels(server.profile.name)),
            "annotations": plan_annotation(server),
            "model": {"uri": _model_uri(server), "name": server.model},
            # It would fetch the target and not the draft; vLLM fetches both.
            "storageInitializer": {"enabled": False},
            "router": {"gateway": {}, "route": {}},
            "template": _template(server),
        },
    }


def _template(server: PodServer) -> dict[str, Any]:
    """Return the PodSpec that KServe merges into its preset.

    The presets' probes are of the kind httpGet, and one probe of two kinds is refused: these are of that kind too.
    """
    main = container(server, name=_CONTAINER, http_probes=True)
    # The presets say where the Hub's cache is, and that is not on the volume.
    main["env"] = [*main["env"], {"name": "HF_HUB_CACHE", "value": f"{HF_HOME}/hub"}]
    return {**pod_spec(server), "containers": [main]}


def _model_uri(server: PodServer) -> str:
    if "target" in server.local_models:
        return f"pvc://{server.name}/models/target"
    return f"hf://{server.profile.target.model}"
