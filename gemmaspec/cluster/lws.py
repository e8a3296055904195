"""A LeaderWorkerSet (v1): one server on several machines, with vLLM's own ranks and without Ray.

The leader is rank 0 and answers requests; the workers are headless. A group that loses any pod is made again as a
whole, because vLLM's ranks cannot join again. Workers must not wait until the leader is ready: it is ready only when
they have joined.
"""

from __future__ import annotations

from typing import Any, Final

from gemmaspec.cluster.names import labels, selector
from gemmaspec.cluster.objects import Object, metadata, plan_annotation, spread
from gemmaspec.cluster.objects import network_policy as policy_of_one
from gemmaspec.cluster.objects import service as service_of_one
from gemmaspec.cluster.pod import API_KEY, pod_spec
from gemmaspec.cluster.server import PodServer
from gemmaspec.stack.nodes import MASTER_PORT, hang_environment, rank_flags

WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
"""The label of a pod's rank in its group; the controller sets it."""
_LEADER: Final = "$(LWS_LEADER_ADDRESS)"
_RANK: Final = "$(LWS_WORKER_INDEX)"
"""Variables that the controller puts before a container's own, and Kubernetes into its arguments."""
_PERIOD_S: Final = 15
_START_S: Final = 3600
_LOST_S: Final = 60
"""A worker whose leader is gone for so long ends, and its group with it; nothing else would tell it."""


def leader_worker_set(server: PodServer) -> Object:
    """Return the LeaderWorkerSet. Its name is not the Service's: the controller makes a headless one of its own."""
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata(server, name=f"{server.name}-lws"),
        "spec": {
            "replicas": server.settings.replicas,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
            },
            "leaderWorkerTemplate": {
                "size": server.profile.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _template(server, leader=True),
                "workerTemplate": _template(server, leader=False),
            },
        },
    }


def service(server: PodServer) -> Object:
    """Return the Service: requests go to leaders alone."""
    found = service_of_one(server)
    found["spec"]["selector"] |= {WORKER_INDEX: "0"}
    return found


def network_policy(server: PodServer) -> Object:
    """Return who may ask the server, and that its pods may reach each other on every port: vLLM chooses them."""
    found = policy_of_one(server)
    peers = {"podSelector": {"matchLabels": dict(selector(server.profile.name))}}
    spec = found["spec"]
    spec["ingress"] = [*spec["ingress"], {"from": [peers]}]
    if "egress" in spec:
        names = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}
        # The leader's address is a name.
        spec["egress"] = [*(spec["egress"] or [names]), {"to": [peers]}]
    return found


def _template(server: PodServer, *, leader: bool) -> Object:
    spec = pod_spec(server)
    (one,) = spec["containers"]
    flags = rank_flags(server.profile, rank=_RANK, master=_LEADER, headless=not leader)
    one["command"] = [*one["command"][:-1], "--node", "$(POD_NAME)", "--"]
    one["args"] = [*one["args"], *flags]
    one["env"] = [*_own_names(), *_environment(server, one["env"], leader=leader)]
    if not leader:
        del one["ports"]
        one |= _worker_probes(server)
    return {
        "metadata": {"labels": dict(labels(server.profile.name)), "annotations": plan_annotation(server)},
        "spec": {**spec, "topologySpreadConstraints": [spread(server)]},
    }


def _own_names() -> list[dict[str, Any]]:
    """Return the pod's name, for messages, and its address, which vLLM tells the other ranks."""
    fields = {"POD_NAME": "metadata.name", "VLLM_HOST_IP": "status.podIP"}
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]


def _environment(server: PodServer, of_one: list[dict[str, Any]], *, leader: bool) -> list[dict[str, Any]]:
    """Return the variables; a worker answers nobody and needs no key."""
    bounds = [{"name": name, "value": text} for name, text in hang_environment(server.profile).items()]
    return [*(each for each in of_one if leader or each["name"] != API_KEY), *bounds]


def _worker_probes(server: PodServer) -> dict[str, Any]:
    """Return the probes of a headless rank: its leader holds the port at which the ranks met.

    Kubernetes expands no variables in probes, so the code reads the leader's address from its environment.
    """
    code = f"import os, socket; socket.create_connection((os.environ['LWS_LEADER_ADDRESS'], {MASTER_PORT}), 8).close()"
    probe = {
        "exec": {"command": [server.profile.container.python, "-I", "-c", code]},
        "periodSeconds": _PERIOD_S,
        "timeoutSeconds": 10,
    }
    return {
        "startupProbe": {**probe, "failureThreshold": _START_S // _PERIOD_S},
        "readinessProbe": {**probe, "failureThreshold": 2},
        "livenessProbe": {**probe, "failureThreshold": _LOST_S // _PERIOD_S},
    }
