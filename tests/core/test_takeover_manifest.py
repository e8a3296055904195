"""A file of Kubernetes as keys of a profile: Deployments, lists of objects, and values of vLLM's production stack."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.takeover import TakenOver
from gemmaspec.core.profile.takeover_manifest import from_manifest, is_manifest
from gemmaspec.core.profile.takeover_text import from_command

SPEC = '{"method": "mtp", "model": "x/y-assistant", "num_speculative_tokens": 4}'


def deployment(container: dict[str, Any], *, kind: str = "Deployment", replicas: int = 1, **pod: Any) -> str:
    """A Deployment with one container, which runs vLLM's own image unless it says otherwise."""
    whole = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", **container}
    spec = {
        "replicas": replicas,
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [whole], **pod}},
    }
    return yaml.safe_dump({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "gemma"}, "spec": spec})


def taken(text: str, service: str | None = None) -> TakenOver:
    assert is_manifest(text)
    return from_manifest(text.encode(), file="m.yaml", service=service)


def test_a_deployment_becomes_a_profile() -> None:
    container = {
        "args": ["--model", "a/b", "--max-model-len=$(LEN)", "--speculative-config", SPEC, "--api-key", "$(KEY)"],
        "env": [
            {"name": "LEN", "value": "8192"},
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "DB_PASS", "value": "s3cret"},
        ],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "hub", "mountPath": "/root/.cache/huggingface"},
        ],
        "livenessProbe": {"httpGet": {"path": "/health"}},
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000},
    }
    volumes = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        {"name": "hub", "hostPath": {"path": "/data/hf"}},
    ]
    made = taken(deployment(container, volumes=volumes, replicas=2))
    assert made.content["image"] == "vllm/vllm-openai:v0.32.0"
    assert made.content["target"] == {"model": "a/b"}
    assert made.content["serve"] == {"max_model_len": 8192}
    assert made.content["draft"] == {"model": "x/y-assistant"}
    assert made.content["env"] == {"NCCL_DEBUG": "INFO"}
    assert {"HF_TOKEN", "DB_PASS", "VLLM_API_KEY"} <= set(made.content["pass_env"])
    assert made.content["container"] == {"shm_size": "16gb", "user": "1000:1000"}
    assert made.content["caches"] == {"huggingface": "/data/hf"}
    assert "s3cret" not in f"{made.content}{made.left}{made.decided}"
    assert any(line.startswith("livenessProbe: a check") for line in made.left)
    assert "replicas: 2: gemmaspec up NAME --replicas N starts several" in made.left


@pytest.mark.parametrize(
    "container",
    [
        {"command": ["vllm", "serve", "a/b"], "args": ["--port", "8001"]},
        {
            "command": ["/bin/sh", "-c"],
            "args": ["exec vllm serve a/b --port $PORT"],
            "env": [{"name": "PORT", "value": "8001"}],
        },
        {"command": ["/bin/sh", "-c", "vllm serve a/b --port 8001"]},
        {"command": ["bash", "-c", 'vllm serve "$@"', "--"], "args": ["a/b", "--port", "8001"]},
        {"command": ["python3", "-m", "vllm.entrypoints.openai.api_server"], "args": ["--model=a/b", "--port=8001"]},
        {"args": ["a/b", "--port", "8001"]},
        {"image": "company/serving:1", "command": ["vllm"], "args": ["serve", "a/b", "--port", "8001"]},
    ],
)
def test_command_and_args_are_read_as_kubernetes_does(container: dict[str, Any]) -> None:
    for kind in ("Deployment", "StatefulSet", "Job"):
        made = taken(deployment(container, kind=kind))
        assert made.content["target"] == {"model": "a/b"}
        assert made.content["serve"] == {"port": 8001}


def test_one_of_several_objects_and_containers_is_found() -> None:
    service = yaml.safe_dump({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": []}})
    text = f"{service}---\n{deployment({'args': ['a/b']}, initContainers=[{'name': 'x'}])}---\n"
    made = taken(text)
    assert made.content["target"] == {"model": "a/b"}
    assert any(line.startswith("initContainers") for line in made.left)
    two = f"{text}{deployment({'name': 'other', 'args': ['c/d']})}"
    with pytest.raises(UsageError, match="2 run vLLM: vllm, other") as caught:
        taken(two)
    assert "--service vllm" in str(caught.value.hint)
    assert taken(two, "other").content["target"] == {"model": "c/d"}
    with pytest.raises(UsageError, match="has no third"):
        taken(two, "third")


def test_what_only_the_cluster_knows_is_named() -> None:
    env = [{"name": "MODEL", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]
    with pytest.raises(UsageError, match="the target's model is"):
        taken(deployment({"args": ["--model", "$(MODEL)"], "env": env}))
    left = taken(deployment({"args": ["a/b", "--max-num-seqs", "$(MODEL)"], "env": env})).left
    assert any(line.startswith("serve.max_num_seqs: ${MODEL}") for line in left)
    claim = {
        "volumeMounts": [{"name": "m", "mountPath": "/m"}],
        "args": ["a/b"],
        "envFrom": [{"secretRef": {"name": "s"}}],
    }
    left = taken(deployment(claim, volumes=[{"name": "m", "persistentVolumeClaim": {"claimName": "c"}}])).left
    assert any(line.startswith("persistentVolumeClaim at /m") for line in left)
    assert any(line.startswith("envFrom: list the names under pass_env") for line in left)
    left = taken(deployment({"args": ["a/b"], "resources": {"limits": {"nvidia.com/gpu": 2}}})).left
    assert any(line.startswith("nvidia.com/gpu: 2") for line in left)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (deployment({"image": "postgres", "command": ["postgres"]}), "no container runs vLLM, only vllm"),
        (deployment({}), "runs no `vllm serve` with a model"),
        (deployment({"command": ["/start/serve.sh"]}), "is not read|runs no"),
        ("apiVersion: v1\nkind: Service\n", "no container runs vLLM, only nothing"),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: [{image: '{{ .Values.image }}'}]}\n", "a template of Helm"),
        ("apiVersion: v1\nkind: Pod\nspec: [\n", "m.yaml"),
    ],
)
def test_another_file_is_refused_with_the_next_step(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        taken(text)
    assert caught.value.hint or "m.yaml:" in caught.value.message


def test_values_of_the_production_stack_become_a_profile() -> None:
    model = {
        "name": "gemma",
        "repository": "vllm/vllm-openai",
        "tag": "v0.32.0",
        "modelURL": "a/b",
        "replicaCount": 2,
        "requestGPU": 1,
        "shmSize": "20Gi",
        "hf_token": "s3cret",
        "pvcStorage": "50Gi",
        "env": [{"name": "TZ", "value": "UTC"}],
        "vllmConfig": {
            "v1": 1,
            "maxModelLen": 8192,
            "enablePrefixCaching": False,
            "tensorParallelSize": 2,
            "gpuMemoryUtilization": 0.9,
            "extraArgs": ["--speculative-config", SPEC, "--max-num-seqs=4"],
        },
    }
    text = yaml.safe_dump({"servingEngineSpec": {"enableEngine": True, "modelSpec": [model]}})
    made = taken(text)
    assert made.content["image"] == "vllm/vllm-openai:v0.32.0"
    assert made.content["target"] == {"model": "a/b"}
    assert made.content["serve"] == {
        "max_model_len": 8192, "enable_prefix_caching": False, "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.9, "max_num_seqs": 4,
    }  # fmt: skip
    assert made.content["draft"] == {"model": "x/y-assistant"}
    assert (made.content["env"], made.content["container"]) == ({"TZ": "UTC"}, {"shm_size": "20gb"})
    assert "s3cret" not in f"{made.content}{made.left}"
    assert [line.partition(":")[0] for line in made.left] == ["pvcStorage", "replicaCount"]  # in the order of the file
    assert from_command(text).content == made.content


def test_a_deep_or_wide_object_ends() -> None:
    deep = "apiVersion: v1\nkind: X\n" + "".join(f"{'  ' * n}a:\n" for n in range(200))
    with pytest.raises(UsageError):
        taken(deep)
