"""The core objects of a profile: ConfigMap, Deployment, Service, volume claim, disruption budget, network policy.

objects.yaml has their form; here is what differs from profile to profile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gemmaspec.core import strict_yaml
from gemmaspec.core.profile.machines import machine_kind
from gemmaspec.run.cluster.names import PLAN_ANNOTATION, labels, selector
from gemmaspec.run.cluster.server import PodServer
from gemmaspec.run.stack.compose import CACHE, CACHE_ENVIRONMENT, OFFLINE, RUN_DIR
from gemmaspec.run.stack.paths import IN_CONTAINER

TABLE: Final = Path(__file__).with_name("objects.yaml")
USER: Final = 1000
"""uid and gid of a server whose profile names none: any but root."""
SHARED_MEMORY: Final = "8Gi"
"""Shared memory of a profile that does not say how large it is."""
API_KEY: Final = "VLLM_API_KEY"
STATE_FILE: Final = f"{RUN_DIR}/probe.json"

_SERVER_SIDE: Final = {"argocd.argoproj.io/sync-options": "ServerSideApply=true"}
"""What Argo CD reads from an object that is too large for the annotation of a client-side apply (256 KiB)."""
_PROOF_S: Final = 120
_ANSWER_S: Final = 20
_DEREGISTER_S: Final = 10
"""How long a pod goes on serving after its end has begun, until every proxy has heard of it."""
_MARGIN_S: Final = 20
_SIZE: Final = re.compile("([0-9.]+)([a-z]+)")
_UNITS: Final = {"b": "", "k": "Ki", "kb": "Ki", "m": "Mi", "mb": "Mi", "g": "Gi", "gb": "Gi"}
_ARCHITECTURES: Final = {"dgx-spark": "arm64"}
"""The CPU of machines that have but one kind; images and nodes of both kinds are in one cluster."""
_OTHER_ROUTES: Final = re.compile(r"(?i)(.*_proxy|HF_ENDPOINT|PIP_.*INDEX_URL|UV_.*INDEX.*)")
"""Variables that send a server to addresses which no rule here can know."""

Object = dict[str, Any]


def objects_of(server: PodServer) -> dict[str, Object]:
    """Return the objects of a profile's server, by file."""
    values = {**_values(server), **_scheduling(server)}
    return {file: _filled(form, values) for file, form in strict_yaml.table(TABLE).items()}


def files() -> tuple[str, ...]:
    """Return the file of each object."""
    return tuple(strict_yaml.table(TABLE))


def _filled(form: Any, values: Mapping[str, Any]) -> Any:
    """Return a form with the values in place of their names; what a value holds is not read again."""
    if isinstance(form, dict):
        made = ((key, _filled(inner, values)) for key, inner in form.items())
        return {key: inner for key, inner in made if inner is not None}
    if isinstance(form, list):
        return [_filled(inner, values) for inner in form]
    if isinstance(form, str) and form.startswith("$"):
        return values[form[1:]]
    return form


def _values(server: PodServer) -> Mapping[str, Any]:
    profile, settings = server.profile, server.settings
    user, _, group = (profile.container.user or f"{USER}:{USER}").partition(":")
    gid = int(group or user)
    egress = _egress(server)
    several = settings.replicas * profile.nodes > 1
    named = {
        "name": server.name,
        "labels": dict(labels(profile.name)),
        "selector": dict(selector(profile.name)),
        "annotations": {PLAN_ANNOTATION: server.plan_sha256},
        "file_annotations": {PLAN_ANNOTATION: server.plan_sha256, **_SERVER_SIDE},
        "config_map": server.config_map,
        "files": dict(server.files),
    }
    around = {
        "access": "ReadWriteMany" if several else "ReadWriteOnce",
        "storage": settings.storage,
        "replicas": settings.replicas,
        "grace_s": _DEREGISTER_S + profile.container.stop_grace_seconds + _MARGIN_S,
        "user": int(user),
        "group": gid,
        "volume_group": gid or USER,
    }
    sleep = [profile.container.python, "-I", "-c", f"import time; time.sleep({_DEREGISTER_S})"]
    container = {
        "image": profile.image,
        "command": [unexpanded(word) for word in server.command],
        "arguments": [unexpanded(word) for word in server.arguments],
        "environment": _environment(server),
        "port": profile.serve.port,
        "drafted": server.probe("drafted", state=STATE_FILE, deadline_s=_PROOF_S),
        "answers": server.probe("answers", state=STATE_FILE, deadline_s=_ANSWER_S),
        "sleep": sleep,
    }
    return {
        **named,
        **around,
        **container,
        "stack_folder": IN_CONTAINER,
        "cache_folder": CACHE,
        "run_folder": RUN_DIR,
        "shared_memory": _shared_memory(server),
        "policy_types": ["Ingress"] if egress is None else ["Ingress", "Egress"],
        "egress": egress,
    }


def _scheduling(server: PodServer) -> Mapping[str, Any]:
    """Return what brings pods to nodes with the machine's GPUs, and to different ones where there are enough.

    One server ends before its successor starts: there is no GPU for both.
    """
    gpus, architecture = server.gpus, _ARCHITECTURES.get(machine_kind(server.profile.machine))
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(selector(server.profile.name))},
    }
    one_by_one = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    several = server.settings.replicas > 1
    scheduling: dict[str, Any] = {
        "strategy": one_by_one if several else {"type": "Recreate"},
        "spread": [spread] if several else None,
        **dict.fromkeys(("resources", "runtime_class", "node", "tolerations")),
    }
    if gpus:
        scheduling["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
        scheduling["runtime_class"] = server.settings.runtime_class or None
        if architecture:
            scheduling["node"] = {"kubernetes.io/arch": architecture}
        else:
            scheduling["node"] = None
        scheduling["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return scheduling


def _environment(server: PodServer) -> list[Object]:
    """Return the container's variables; those of `pass_env` are references to a Secret."""
    profile = server.profile
    # Nobody has a name in the image by this uid, and getpass asks these variables first.
    plain = {**CACHE_ENVIRONMENT, "USER": "vllm", "LOGNAME": "vllm", **profile.env, **server.served.environment}
    variables: list[Object] = [{"name": name, "value": unexpanded(value)} for name, value in plain.items()]
    for name in dict.fromkeys(profile.pass_env):
        if name not in plain:
            # A server without its key would be open to everybody: without the Secret, it does not start.
            reference = {"name": server.secret, "key": name, "optional": name != API_KEY}
            variables.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    return variables


def _shared_memory(server: PodServer) -> str:
    """Return the size of /dev/shm in Kubernetes' units: Docker's gb are Gi."""
    size = _SIZE.fullmatch((server.profile.container.shm_size or "").lower())
    if size:
        return f"{size[1]}{_UNITS[size[2]]}"
    return SHARED_MEMORY


def unexpanded(text: str) -> str:
    """Return `text` as command, args and env need it: Kubernetes reads $(NAME) there, and $$ as one $."""
    return text.replace("$", "$$")


def _egress(server: PodServer) -> list[Object] | None:
    """Return the rules for what a server asks: nobody, or names and HTTPS for the Hub; None where nobody can know."""
    profile = server.profile
    if profile.env.get(OFFLINE, "0").lower() in ("1", "true", "yes", "on"):
        return []
    if any(_OTHER_ROUTES.fullmatch(name) for name in (*profile.env, *profile.pass_env)):
        return None
    names = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return [{"ports": names}, {"ports": [{"protocol": "TCP", "port": 443}]}]
