"""A container of a Kubernetes object, or a model of vLLM's production stack, as keys of a profile. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from gemmaspec.core import strict_yaml
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.takeover import ADOPT, TakenOver, variable
from gemmaspec.core.profile.takeover_compose import runs_vllm
from gemmaspec.core.profile.takeover_docker import INSTEAD, mount, option
from gemmaspec.core.profile.takeover_shell import Scope, arguments, serve

_OBJECT: Final = re.compile(r"\A(?=.*?^apiVersion:)(?=.*?^kind:)", re.MULTILINE | re.DOTALL)
_STACK: Final = re.compile(r"^servingEngineSpec:", re.MULTILINE)
_TEMPLATE: Final = re.compile(r"\{\{.*?\}\}")
_HELD: Final = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
"""$(NAME) of a variable of the container, which Kubernetes fills into command and args."""
_DEEPEST: Final = 12
_WRITTEN_BY_RENDER: Final = "gemmaspec render NAME --to kubernetes writes the objects of a profile"
_QUIET: Final = frozenset(
    {"name", "image", "command", "args", "env", "imagePullPolicy", "ports", "volumeMounts", "resources", "tty", "stdin"}
    | {"terminationMessagePath", "terminationMessagePolicy"}
)
_PROBES: Final = frozenset({"livenessProbe", "readinessProbe", "startupProbe"})
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108, a folder of the container
_GPU: Final = "nvidia.com/gpu"
_OF_STACK: Final = frozenset(
    {"name", "repository", "tag", "modelURL", "vllmConfig", "env", "requestGPU", "shmSize", "hf_token", "annotations"}
)
_NOT_FLAGS: Final = frozenset({"extraArgs", "v0", "v1"})
"""Keys of vllmConfig that are no flags of vLLM."""


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A container, with what its pod says."""

    name: str
    container: Mapping[str, Any]
    pod: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1


def is_manifest(text: str) -> bool:
    """Return whether a text holds objects of Kubernetes, or values of vLLM's production stack."""
    return _OBJECT.search(text) is not None or _STACK.search(text) is not None


def from_manifest(
    content: bytes, *, file: str, service: str | None = None, beside: Callable[[str], bytes | None] | None = None
) -> TakenOver:
    """Return what a file of Kubernetes serves. Raises UsageError for one without one container that runs vLLM.

    `service` names one of several; `beside` reads a file that a container names.
    """
    text = strict_yaml.read_text(content, file=file, error=UsageError)
    if _TEMPLATE.search(text):
        raise UsageError(
            f"{file} is a template of Helm", hint="helm template RELEASE CHART > FILE    # and take that over"
        )
    made = TakenOver(contained=True, beside=beside)
    documents = list(_documents(text, file))
    models = list(chain.from_iterable(map(_models, documents)))
    if models:
        by_name = {str(model.get("name")): model for model in models}
        _model_of_stack(made, _chosen(by_name, file, service))
        return made
    found = {one.name: one for one in chain.from_iterable(map(_containers, documents))}
    serving = {name: one for name, one in found.items() if runs_vllm(_as_service(one.container))}
    if not serving and service is None:
        raise UsageError(f"{file}: no container runs vLLM, only {', '.join(found) or 'nothing'}", hint=ADOPT)
    chosen = _chosen(found if service is not None else serving, file, service)
    _container(made, chosen, file)
    return made


def _documents(text: str, file: str) -> Iterator[Any]:
    for part in re.split(r"^---[ \t]*(?:#.*)?$", text, flags=re.MULTILINE):
        if part.strip():
            yield strict_yaml.parse(part, file=file, error=UsageError, references=True).data


def _chosen(found: Mapping[str, Any], file: str, asked: str | None) -> Any:
    """Return one of several by its name. Raises UsageError where that is not clear."""
    if asked is not None and asked not in found:
        raise UsageError(f"{file} has no {asked}; it has {', '.join(found)}")
    if asked is not None:
        return found[asked]
    if len(found) > 1:
        first = next(iter(found))
        raise UsageError(
            f"{file}: {len(found)} run vLLM: {', '.join(found)}; a profile serves one of them",
            hint=f"gemmaspec profile new NAME --from-compose {shlex.quote(file)} --service {first}",
        )
    return next(iter(found.values()))


def _containers(document: Any, name: str = "", depth: int = 0) -> Iterator[_Found]:
    """Yield each container of an object, wherever its pod's template stands."""
    if depth > _DEEPEST or not isinstance(document, dict):
        return
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("name"), str):
        own = str(metadata["name"])
    else:
        own = name
    replicas = document.get("replicas")
    for key, value in document.items():
        if key == "items" and isinstance(value, list):
            for item in value:
                yield from _containers(item, own, depth + 1)
        elif key == "containers" and isinstance(value, list):
            for container in (one for one in value if isinstance(one, dict)):
                called = str(container.get("name") or own)
                yield _Found(name=called, container=container, pod=document)
        elif isinstance(value, dict):
            for found in _containers(value, own, depth + 1):
                if isinstance(replicas, int):
                    many = replicas
                else:
                    many = found.replicas
                yield _Found(name=found.name, container=found.container, pod=found.pod, replicas=many)


def _as_service(container: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "image": container.get("image", ""),
        "entrypoint": container.get("command"),
        "command": container.get("args"),
    }


def _container(made: TakenOver, found: _Found, file: str) -> None:
    container = found.container
    if image := container.get("image"):
        made.content["image"] = str(image)
    values = _environment(made, container.get("env"))
    _resources(made, container.get("resources"))
    _mounts(made, container, found.pod)
    _security(made, container.get("securityContext"))
    for key in container:
        if key in _PROBES:
            made.leave(key, INSTEAD["healthcheck"])
        elif key == "envFrom":
            made.leave(key, INSTEAD["env-file"])
        elif key not in _QUIET and key != "securityContext":
            made.leave(key, _WRITTEN_BY_RENDER)
    for key in ("initContainers", "nodeSelector", "affinity", "tolerations", "hostNetwork", "hostIPC"):
        if found.pod.get(key):
            made.leave(key, _WRITTEN_BY_RENDER)
    if found.replicas > 1:
        made.leave(f"replicas: {found.replicas}", "gemmaspec up NAME --replicas N starts several")
    written = [*_list(container.get("command")), *_list(container.get("args"))]
    words = [_filled(str(word), values) for word in written]
    has_command = bool(container.get("command"))
    scope = Scope(variables=dict(values))
    if not words or not (
        serve(made, words, scope) if has_command and not container.get("args") else arguments(made, words, scope)
    ):
        raise UsageError(f"{file}: the container {found.name} runs no `vllm serve` with a model", hint=ADOPT)


def _environment(made: TakenOver, rows: Any) -> dict[str, str]:
    """Take over the variables of a container, and return the values that stand in the file."""
    values: dict[str, str] = {}
    for row in _list(rows):
        if not isinstance(row, dict):
            continue
        name, value = str(row.get("name", "")), row.get("value")
        if value is None or "valueFrom" in row:
            text = None
        else:
            text = _filled(str(value), values)
        if text is not None:
            values[name] = text
        variable(made, name, text)
    return values


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Return a word with $(NAME) filled in; one that a secret of the cluster holds stays open, and is named later."""
    return _HELD.sub(lambda match: values.get(match[1], f"${{{match[1]}}}"), text)


def _resources(made: TakenOver, resources: Any) -> None:
    if isinstance(resources, dict):
        limits = resources.get("limits")
    else:
        limits = None
    if isinstance(limits, dict):
        count = limits.get(_GPU)
    else:
        count = None
    if count not in (None, 1, "1"):
        made.leave(f"{_GPU}: {count}", "serve.tensor_parallel_size says on how many GPUs a server runs")


def _security(made: TakenOver, context: Any) -> None:
    if not isinstance(context, dict):
        return
    if isinstance(context.get("runAsUser"), int):
        group = context.get("runAsGroup")
        option(
            made, "--user", f"{context['runAsUser']}:{group}" if isinstance(group, int) else str(context["runAsUser"])
        )
    if context.get("readOnlyRootFilesystem") is True:
        option(made, "--read-only", "true")
    if context.get("privileged") is True:
        option(made, "--privileged", "")


def _mounts(made: TakenOver, container: Mapping[str, Any], pod: Mapping[str, Any]) -> None:
    """Take over the pod's volumes that a container mounts: folders of the node, and shared memory."""
    volumes = {str(one.get("name")): one for one in _list(pod.get("volumes")) if isinstance(one, dict)}
    for row in _list(container.get("volumeMounts")):
        if not isinstance(row, dict):
            continue
        inside, volume = str(row.get("mountPath", "")), volumes.get(str(row.get("name")), {})
        if isinstance(host := volume.get("hostPath"), dict):
            mount(made, str(host.get("path", "")), inside)
        elif inside == _SHARED_MEMORY:
            empty = volume.get("emptyDir")
            if isinstance(empty, dict) and empty.get("sizeLimit"):
                option(made, "--shm-size", str(empty["sizeLimit"]))
        else:
            kind = next((key for key in volume if key != "name"), "volume")
            made.leave(
                f"{kind} at {inside}", "caches: names folders; rendered objects have a claim of their own for them"
            )


def _models(document: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the models of a values file of vLLM's production stack."""
    if isinstance(document, dict):
        spec = document.get("servingEngineSpec")
    else:
        spec = None
    if isinstance(spec, dict):
        rows = spec.get("modelSpec")
    else:
        rows = None
    for row in _list(rows):
        if isinstance(row, dict) and row.get("modelURL"):
            yield row


def _model_of_stack(made: TakenOver, model: Mapping[str, Any]) -> None:
    """Take over one model of the production stack: the words that its chart writes after `vllm serve`."""
    if model.get("repository"):
        made.content["image"] = f"{model['repository']}:{model.get('tag', 'latest')}"
    values = _environment(made, model.get("env"))
    if model.get("hf_token"):
        variable(made, "HF_TOKEN", None)
    if model.get("shmSize"):
        option(made, "--shm-size", str(model["shmSize"]))
    config = model.get("vllmConfig")
    config = config if isinstance(config, dict) else {}
    words = [str(model["modelURL"])]
    for key, value in config.items():
        if key not in _NOT_FLAGS:
            words += _flag(key, value)
    words += [_filled(str(word), values) for word in _list(config.get("extraArgs"))]
    for key in model:
        if key == "replicaCount" and model[key] != 1:
            made.leave(f"replicaCount: {model[key]}", "gemmaspec up NAME --replicas N starts several")
        elif key not in _OF_STACK and key != "replicaCount":
            made.leave(key, _WRITTEN_BY_RENDER)
    arguments(made, words)


def _flag(key: str, value: Any) -> list[str]:
    """Return maxModelLen: 4096 as --max-model-len 4096."""
    flag = "--" + re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"-{match[1].lower()}", key).replace("_", "-")
    if isinstance(value, bool):
        if value:
            return [flag]
        return [f"--no-{flag.removeprefix('--')}"]
    if value is None:
        return []
    return [flag, str(value)]


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return []
