"""`render --to lws`: a LeaderWorkerSet for one server on several machines. Its pods are checked by Kubernetes' own schema,
what is around them by models of exactly the fields that are rendered."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import kubernetes_validate
import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

from gemmaspec.cli.app import run
from gemmaspec.cluster.build import Manifests, build_manifests
from gemmaspec.cluster.settings import Settings
from gemmaspec.errors import ProfileError
from gemmaspec.launcher.rank_facts import arguments_of
from gemmaspec.launcher.ranks import place_of
from gemmaspec.profile.load import load_profile
from tests.test_cluster import NEWEST, OLDEST, expanded

SPARKS = ["spark2-31b", "spark2-31b-mtp"]


class Strict(BaseModel):
    """Fields as the custom resource has them, and no others."""

    model_config = ConfigDict(extra="forbid")


class PodTemplate(Strict):
    metadata: dict[Literal["labels", "annotations"], dict[str, str]]
    spec: dict[str, Any]


class LeaderWorkerTemplate(Strict):
    size: int = Field(ge=1)
    restartPolicy: Literal["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]  # noqa: N815
    leaderTemplate: PodTemplate  # noqa: N815
    workerTemplate: PodTemplate  # noqa: N815


class RollingUpdate(Strict):
    maxUnavailable: int  # noqa: N815
    maxSurge: int  # noqa: N815


class Rollout(Strict):
    type: Literal["RollingUpdate"]
    rollingUpdateConfiguration: RollingUpdate  # noqa: N815


class Spec(Strict):
    replicas: int
    startupPolicy: Literal["LeaderCreated", "LeaderReady"]  # noqa: N815
    rolloutStrategy: Rollout  # noqa: N815
    leaderWorkerTemplate: LeaderWorkerTemplate  # noqa: N815


class LeaderWorkerSet(Strict):
    apiVersion: Literal["leaderworkerset.x-k8s.io/v1"]  # noqa: N815
    kind: Literal["LeaderWorkerSet"]
    metadata: dict[str, Any]
    spec: Spec


def rendered(name: str = "spark2-31b-mtp", *overrides: str, **options: Any) -> Manifests:
    return build_manifests(load_profile(name, overrides=overrides), "lws", Settings(**options))


def pods(made: Manifests) -> list[dict[str, Any]]:
    """The pod specs of leader and worker."""
    template = made.objects["leader-worker-set.yaml"]["spec"]["leaderWorkerTemplate"]
    return [template[f"{role}Template"]["spec"] for role in ("leader", "worker")]


def words(spec: dict[str, Any], rank: int) -> list[str]:
    """A container's whole command line, as Kubernetes expands it on a rank."""
    (one,) = spec["containers"]
    known = {"LWS_WORKER_INDEX": str(rank), "LWS_LEADER_ADDRESS": "x-0.x.default", "POD_NAME": f"x-0-{rank}"}
    return [expanded(word, known) for word in (*one["command"], *one["args"])]


@pytest.mark.parametrize("name", SPARKS)
def test_the_object_is_read_back_as_it_was_written(name: str) -> None:
    made = rendered(name)
    read = yaml.safe_load(made.files["leader-worker-set.yaml"])
    assert LeaderWorkerSet.model_validate(read).model_dump() == read == made.objects["leader-worker-set.yaml"]


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_its_pods_and_the_other_objects_pass_kubernetes_own_schema(version: str) -> None:
    made = rendered()
    for spec in pods(made):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(pod, version, strict=True)
    for name, each in made.objects.items():
        if name != "leader-worker-set.yaml":
            kubernetes_validate.validate(each, version, strict=True)


def test_a_lost_pod_is_the_whole_groups_and_workers_do_not_wait_for_a_ready_leader() -> None:
    spec = rendered().objects["leader-worker-set.yaml"]["spec"]
    assert spec["startupPolicy"] == "LeaderCreated"
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert spec["leaderWorkerTemplate"]["size"] == 2
    assert spec["rolloutStrategy"]["rollingUpdateConfiguration"]["maxSurge"] == 0


def test_each_rank_knows_its_place_its_plan_and_its_own_address() -> None:
    made = rendered()
    for rank, spec in enumerate(pods(made)):
        said = words(spec, rank)
        place = place_of(arguments_of(said[said.index("vllm") :]))
        assert place
        assert (place.rank, place.nodes, place.master, place.port) == (rank, 2, "x-0.x.default", 29502)
        assert ("--headless" in said) == bool(rank)
        assert said[said.index("--expect-plan") + 1] == made.server.plan_sha256
        assert said[said.index("--node") + 1] == f"x-0-{rank}"
        env = {one["name"]: one for one in spec["containers"][0]["env"]}
        assert env["VLLM_HOST_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        assert "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" in env
        assert not [name for name in env if name.startswith("LWS_")]
    assert {"ranks.py", "rank_facts.py"} <= set(made.objects["configmap.yaml"]["data"])


def test_each_pod_has_its_share_of_the_gpus_and_all_share_a_volume() -> None:
    made = rendered("spark2-31b", "serve.tensor_parallel_size=4")
    for spec in pods(made):
        assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert made.objects["volume.yaml"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_only_the_leader_answers_and_has_the_key() -> None:
    made = rendered("spark2-31b", "pass_env=[HF_TOKEN, VLLM_API_KEY]")
    leader, worker = (spec["containers"][0] for spec in pods(made))
    assert leader["ports"][0]["name"] == "http"
    assert "ports" not in worker
    names = [{one["name"] for one in each["env"]} for each in (leader, worker)]
    assert names[0] - names[1] == {"VLLM_API_KEY"}
    assert "HF_TOKEN" in names[1]
    service = made.objects["service.yaml"]
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_a_worker_whose_leader_is_gone_ends() -> None:
    leader, worker = (spec["containers"][0] for spec in pods(rendered()))
    assert "drafted" in leader["startupProbe"]["exec"]["command"]
    liveness = worker["livenessProbe"]
    assert "os.environ['LWS_LEADER_ADDRESS'], 29501" in liveness["exec"]["command"][-1]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] == 60
    assert worker["startupProbe"]["periodSeconds"] * worker["startupProbe"]["failureThreshold"] == 3600


def test_the_controllers_own_service_has_another_name() -> None:
    objects = rendered().objects
    assert objects["service.yaml"]["metadata"]["name"] != objects["leader-worker-set.yaml"]["metadata"]["name"]
    longest = load_profile("spark2-31b").profile.model_copy(update={"name": "a" * 63})
    made = build_manifests(_with(longest), "lws", Settings())
    assert len(made.objects["leader-worker-set.yaml"]["metadata"]["name"]) <= 63 - len("-0-63")


def _with(profile: Any) -> Any:
    import dataclasses

    return dataclasses.replace(load_profile("spark2-31b"), profile=profile)


def test_the_ranks_may_talk_to_each_other_and_look_each_other_up() -> None:
    own = {
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "gemmaspec", "gemmaspec.dev/profile": "spark2-31b"}}
    }
    for sets in ((), ("env.HF_HUB_OFFLINE='1'",)):
        policy = rendered("spark2-31b", *sets).objects["network-policy.yaml"]["spec"]
        assert policy["ingress"][1] == {"from": [own]}
        assert policy["egress"][-1] == {"to": [own]}
        assert 53 in {port["port"] for rule in policy["egress"] for port in rule.get("ports", [])}


@pytest.mark.parametrize("to", ["kubernetes", "kserve", "llm-d-values"])
def test_what_runs_on_one_machine_is_not_rendered_for_two(to: Any) -> None:
    with pytest.raises(ProfileError, match=f"nodes: is 2, and {to} runs a server on one machine"):
        build_manifests(load_profile("spark2-31b"), to, Settings())


def test_a_server_on_one_machine_is_refused_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "tiny-cpu", "--to", "lws", "--out", str(tmp_path / "x")]) == 2
    assert "a LeaderWorkerSet is for one server on several machines" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_render_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "tiny-cpu", "--set", "nodes=2", "--to", "lws", "--out", str(tmp_path / "x")]) == 0
    assert "kubectl apply --server-side" in capsys.readouterr().err
    kustomization = yaml.safe_load((tmp_path / "x/kustomization.yaml").read_text())
    assert "leader-worker-set.yaml" in kustomization["resources"]
