"""`gemmaspec render --to`: objects for a cluster, against Kubernetes' own schemas, and what a profile may hold."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.errors import ProfileError, UsageError
from gemmaspec.core.launcher import ATTEST_FILES, ORIGINS_FILE
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.run.cluster import names
from gemmaspec.run.cluster.build import Manifests, build_manifests
from gemmaspec.run.cluster.objects import unexpanded
from gemmaspec.run.cluster.server import ClusterSettings
from gemmaspec.run.cluster.text import yaml_text

PROFILES = [name for name in profile_names([data.PROFILES]) if load_profile(name).profile.nodes == 1]
NEWEST = "1.37"
OLDEST = "1.25"
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)


def rendered(name: str = "tiny-cpu", *overrides: str, **options: Any) -> Manifests:
    return build_manifests(load_profile(name, overrides=overrides), ClusterSettings(**options))


def changed(loaded: Loaded, **update: Any) -> Loaded:
    """A profile with values that its own model has not looked at."""
    return dataclasses.replace(loaded, profile=loaded.profile.model_copy(update=update))


def pod_of(made: Manifests) -> dict[str, Any]:
    found: dict[str, Any] = made.objects["deployment.yaml"]["spec"]["template"]["spec"]
    return found


def expanded(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of a word of command, args or env (k8s.io/kubernetes/third_party/forked/golang/expansion)."""
    return re.sub(
        r"\$(\$|\(([^)]*)\))",
        lambda found: "$" if found[1] == "$" else variables.get(found[2], found[0]),
        text,
    )


@pytest.mark.parametrize("name", PROFILES)
def test_every_object_of_a_shipped_profile_passes_kubernetes_own_schema(name: str) -> None:
    several = rendered(name, replicas=3).objects
    for each in (*rendered(name).objects.values(), several["deployment.yaml"], several["volume.yaml"]):
        kubernetes_validate.validate(each, NEWEST, strict=True)


def test_the_objects_are_valid_in_old_clusters_too() -> None:
    for each in rendered("spark-31b-e2b", replicas=2).objects.values():
        kubernetes_validate.validate(each, OLDEST, strict=True)


def test_a_wrong_field_would_have_been_found() -> None:
    deployment = json.loads(json.dumps(rendered().objects["deployment.yaml"]))
    deployment["spec"]["template"]["spec"]["volumes"][4]["emptyDir"]["mediun"] = "Memory"
    with pytest.raises(kubernetes_validate.ValidationError, match="mediun"):
        kubernetes_validate.validate(deployment, NEWEST, strict=True)


def test_rendering_twice_gives_the_same_bytes_in_any_hash_order() -> None:
    script = (
        "import hashlib; from gemmaspec.run.cluster.build import build_manifests;"
        "from gemmaspec.run.cluster.server import ClusterSettings; from gemmaspec.core.profile.load import load_profile;"
        "files = list(build_manifests(load_profile('spark-31b-e2b'), ClusterSettings()).files.items());"
        "print(hashlib.sha256(repr(files).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_the_pod_keeps_to_the_restricted_standard_and_can_write_where_it_must() -> None:
    spec = pod_of(rendered("spark-31b-e2b"))
    container = spec["containers"][0]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 1000
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostIPC", "hostPID"} & set(spec)
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}
    assert mounts == {
        "/gemmaspec": True,
        "/var/tmp": False,
        "/run/gemmaspec": False,
        "/tmp": False,
        "/dev/shm": False,
    }
    memory = next(one["emptyDir"] for one in spec["volumes"] if one["name"] == "dshm")
    assert memory == {"medium": "Memory", "sizeLimit": "16Gi"}


def test_one_server_on_gpus_ends_before_its_successor_starts() -> None:
    made = rendered("spark-31b-e2b")
    assert made.objects["deployment.yaml"]["spec"]["strategy"] == {"type": "Recreate"}
    assert made.objects["volume.yaml"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert pod_of(made)["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert pod_of(made)["runtimeClassName"] == "nvidia"
    assert pod_of(made)["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    several = rendered("spark-31b-e2b", replicas=2, runtime_class=None)
    rolling = several.objects["deployment.yaml"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}
    assert several.objects["volume.yaml"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "runtimeClassName" not in pod_of(several)


def test_tensor_parallel_servers_ask_for_as_many_gpus() -> None:
    made = rendered("nvidia-31b-mtp", "serve.tensor_parallel_size=2", "serve.pipeline_parallel_size=2")
    assert pod_of(made)["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"


def test_a_server_without_a_gpu_asks_for_none() -> None:
    spec = pod_of(rendered("tiny-cpu"))
    assert not {"runtimeClassName", "tolerations", "nodeSelector"} & set(spec)
    assert "resources" not in spec["containers"][0]


def test_the_probes_leave_a_start_an_hour_and_ask_real_questions() -> None:
    container = pod_of(rendered("tiny-cpu"))["containers"][0]
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 3600
    assert startup["exec"]["command"][2:4] == ["/gemmaspec/probe.py", "drafted"]
    assert "--speculates" in startup["exec"]["command"]
    assert container["readinessProbe"]["exec"]["command"][3] == "answers"
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        command = container[name]["exec"]["command"]
        deadline = next(int(word.partition("=")[2]) for word in command if word.startswith("--deadline="))
        assert deadline < container[name]["timeoutSeconds"]
    alone = build_manifests(load_profile("tiny-cpu", no_spec=True), ClusterSettings())
    assert "--speculates" not in pod_of(alone)["containers"][0]["startupProbe"]["exec"]["command"]


def test_the_end_leaves_time_for_the_proxies_and_the_requests() -> None:
    spec = pod_of(rendered("tiny-cpu"))
    args = spec["containers"][0]["args"]
    assert args[args.index("--shutdown-timeout") + 1] == "60"
    assert spec["terminationGracePeriodSeconds"] == 90
    own = pod_of(rendered("tiny-cpu", "serve.extra_args=[--shutdown-timeout=5]"))
    assert own["containers"][0]["args"].count("--shutdown-timeout") == 0


def test_secrets_are_references_and_a_server_that_needs_its_key_does_not_start_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_this_must_not_be_written")
    monkeypatch.setenv("VLLM_API_KEY", "key-this-must-not-be-written")
    made = rendered("tiny-cpu", "pass_env=[HF_TOKEN, VLLM_API_KEY]", secret="mine")
    found = {one["name"]: one["valueFrom"] for one in pod_of(made)["containers"][0]["env"] if "valueFrom" in one}
    assert found == {
        "HF_TOKEN": {"secretKeyRef": {"name": "mine", "key": "HF_TOKEN", "optional": True}},
        "VLLM_API_KEY": {"secretKeyRef": {"name": "mine", "key": "VLLM_API_KEY", "optional": False}},
    }
    assert not any("must-not-be" in text or "must_not_be" in text for text in made.files.values())


def test_other_files_are_another_config_map_and_none_can_be_changed() -> None:
    one, other = rendered(), rendered("tiny-cpu", "speculative.num_speculative_tokens=2")
    maps = [each.objects["configmap.yaml"] for each in (one, other)]
    assert maps[0]["metadata"]["name"] != maps[1]["metadata"]["name"]
    assert all(each["immutable"] is True for each in maps)
    for each, made in zip(maps, (one, other), strict=True):
        stack = next(volume for volume in pod_of(made)["volumes"] if volume["name"] == "stack")
        assert stack["configMap"]["name"] == each["metadata"]["name"]
        files = {
            "launch.py",
            ORIGINS_FILE,
            *ATTEST_FILES,
            "probe.py",
            "plan.json",
            "speculative-config.json",
            "chat-template.jinja",
        }
        assert set(each["data"]) == files
    assert one.objects["deployment.yaml"]["metadata"]["name"] == other.objects["deployment.yaml"]["metadata"]["name"]


def test_argo_cd_is_asked_to_apply_the_config_map_server_side() -> None:
    """It applies client-side by default, which keeps the whole object in an annotation."""
    whole = rendered("nvidia-31b-mtp", "machine=h100").objects["configmap.yaml"]
    assert len(json.dumps(whole)) > 256 * 1024, "small enough: then the annotation and the page's words can go"
    assert whole["metadata"]["annotations"]["argocd.argoproj.io/sync-options"] == "ServerSideApply=true"


def test_the_pods_annotation_is_the_plan_that_they_carry() -> None:
    made = rendered()
    plan = json.loads(made.files and made.objects["configmap.yaml"]["data"]["plan.json"])
    metadata = made.objects["deployment.yaml"]["spec"]["template"]["metadata"]
    assert metadata["annotations"] == {"gemmaspec.dev/plan-sha256": plan["sha256"]}
    command = pod_of(made)["containers"][0]["command"]
    assert command[command.index("--expect-plan") + 1] == plan["sha256"]


def test_a_stack_too_large_for_a_config_map_is_refused_with_its_largest_file(tmp_path: Path) -> None:
    template = tmp_path / "large.jinja"
    template.write_text("x" * 1_000_000)
    with pytest.raises(ProfileError, match=r"1048576; the largest is chat-template\.jinja"):
        rendered("tiny-cpu", f"chat.template={template}")


def test_only_labelled_pods_may_ask_and_an_offline_server_asks_nobody() -> None:
    policy = rendered("tiny-cpu").objects["network-policy.yaml"]["spec"]
    assert policy["egress"] == []
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"gemmaspec.dev/client": "true"}}}]
    online = rendered("spark-31b-e2b").objects["network-policy.yaml"]["spec"]
    assert {port["port"] for rule in online["egress"] for port in rule["ports"]} == {53, 443}
    proxied = rendered("spark-31b-e2b", "env.HTTPS_PROXY=http://proxy:3128").objects["network-policy.yaml"]
    assert proxied["spec"]["policyTypes"] == ["Ingress"]


def test_root_and_images_of_this_machine_are_refused() -> None:
    for user in ("0", "0:0", "00:5"):
        with pytest.raises(ProfileError, match=r"container\.user: is root"):
            rendered("tiny-cpu", f"container.user={user}")
    with pytest.raises(ProfileError, match="of this machine alone"):
        build_manifests(changed(load_profile("tiny-cpu"), image="sha256:" + "0" * 64), ClusterSettings())
    with pytest.raises(ProfileError, match="image: is missing"):
        build_manifests(changed(load_profile("tiny-cpu"), image=None), ClusterSettings())


def test_the_replicas_of_a_profile_are_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["render", "tiny-cpu", "--set", "replicas=3", "--out"]
    assert run([*asked, str(tmp_path / "x"), "--to", "kubernetes"]) == 0
    assert "replicas: 3\n" in (tmp_path / "x" / "deployment.yaml").read_text()
    assert run([*asked, str(tmp_path / "y"), "--to", "kubernetes", "--replicas", "1"]) == 0
    assert "replicas: 1\n" in (tmp_path / "y" / "deployment.yaml").read_text()
    assert run([*asked, str(tmp_path / "z")]) == 2
    assert "tiny-cpu has replicas" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"replicas": 0}, "--replicas"),
        ({"storage": "100GB"}, "--storage"),
        ({"storage": "-1Gi"}, "--storage"),
        ({"secret": "Bad_Name"}, "--secret"),
        ({"secret": "a" * 64}, "--secret"),
        ({"runtime_class": "-x"}, "--runtime-class"),
    ],
)
def test_settings_that_a_cluster_would_refuse_are_refused(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ClusterSettings(**options)


LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@given(st.text("abcz019-", min_size=1, max_size=63))
@settings(max_examples=60, deadline=None)
def test_names_of_objects_and_labels_are_valid_whatever_a_profile_is_called(profile: str) -> None:
    name = names.object_name(profile)
    assert LABEL.fullmatch(name)
    assert name[0].isalpha()
    assert name != "vllm"
    assert LABEL.fullmatch(names.hashed_name(name, {"a": "b"}))
    assert all(LABEL.fullmatch(value) for value in names.labels(profile).values())


def test_two_long_names_that_begin_alike_stay_two_names() -> None:
    names_ = {names.object_name("a" * 60 + suffix) for suffix in ("", "b", "c", "-")}
    assert len(names_) == 4
    assert names.bounded("---") not in ("", "-")


@given(st.dictionaries(TEXTS, TEXTS), st.lists(TEXTS))
@settings(max_examples=60, deadline=None)
def test_any_text_is_read_as_the_same_text(keys: dict[str, str], words: list[str]) -> None:
    document = {"words": words, "keys": keys}
    assert yaml.safe_load(yaml_text([document])) == document


@pytest.mark.parametrize(
    "word", ["no", "1e3", "0x10", "2026-11-22", "null", "~", "1:30", "", " ", "a: b", "- x", "#", "\u2028", "x\n\n y\n"]
)
def test_words_that_yaml_reads_as_something_else_stay_texts(word: str) -> None:
    text = yaml_text([{"value": word, word or "k": 1}])
    assert yaml.safe_load(text) == {"value": word, word or "k": 1}


HOSTILE = st.one_of(
    TEXTS, st.sampled_from(["$(HOME)", "$$(HOME)", "$", "$$", "$(HOME", "{{ x }}", "--", "a\u2028b", "'\""])
)


@given(HOSTILE, HOSTILE)
@settings(max_examples=15, deadline=None)
def test_hostile_values_of_a_profile_reach_the_server_as_they_are(value: str, model: str) -> None:
    loaded = load_profile("tiny-cpu")
    profile = loaded.profile
    hostile = changed(
        loaded,
        env={"HOSTILE": value},
        serve=profile.serve.model_copy(update={"served_model_name": model, "extra_args": [value]}),
    )
    made = build_manifests(hostile, ClusterSettings())
    read = yaml.safe_load(made.files["deployment.yaml"])["spec"]["template"]["spec"]["containers"][0]
    seen = [expanded(word, {"HOME": "/root"}) for word in read["args"]]
    assert seen[seen.index("--served-model-name") + 1] == model
    assert value in seen
    assert expanded(next(one["value"] for one in read["env"] if one["name"] == "HOSTILE"), {"HOME": "/"}) == value
    assert f"--model={model}" in read["startupProbe"]["exec"]["command"]  # Kubernetes expands nothing in probes


def test_a_dollar_is_escaped_for_kubernetes() -> None:
    assert unexpanded("$(A) $B $$") == "$$(A) $$B $$$$"


def test_render_writes_a_folder_that_check_agrees_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "k"
    assert run(["render", "tiny-cpu", "--to", "kubernetes", "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert f"kubectl apply --server-side -k {out}" in said
    assert "copy it to models/target of the volume gemmaspec-tiny-cpu" in said
    assert "the image's tag can move" in said
    kustomization = yaml.safe_load((out / "kustomization.yaml").read_text())
    assert {*kustomization["resources"], "kustomization.yaml"} == {one.name for one in out.glob("*.yaml")}
    assert run(["render", "tiny-cpu", "--to", "kubernetes", "--out", str(out), "--check"]) == 0
    assert run(["render", "tiny-cpu", "--to", "kubernetes", "--out", str(out), "--check", "--replicas", "2"]) == 3


def test_a_stack_and_manifests_share_a_folder_and_files_of_the_users_are_kept(tmp_path: Path) -> None:
    assert run(["render", "tiny-cpu", "--out", str(tmp_path)]) == 0
    assert run(["render", "tiny-cpu", "--to", "kubernetes", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "compose.yaml").is_file()
    assert run(["render", "tiny-cpu", "--out", str(tmp_path), "--set", "serve.port=9999"]) == 0
    (tmp_path / "service.yaml").write_text("mine")
    assert run(["render", "tiny-cpu", "--to", "kubernetes", "--out", str(tmp_path)]) == 2
    assert (tmp_path / "service.yaml").read_text() == "mine"


def test_options_of_the_other_target_are_refused() -> None:
    for option in (["--validate", "cluster"], ["--replicas", "2"], ["--secret", "x"], ["--namespace", "x"]):
        assert run(["render", "tiny-cpu", *option]) == 2
    assert run(["render", "tiny-cpu", "--to", "kubernetes", "--single-file"]) == 2
    assert run(["render", "tiny-cpu", "--to", "kserve"]) == 2
    assert run(["render", "tiny-cpu", "--to", "kubernetes", "--validate", "crd.yaml"]) == 2


def test_a_server_on_several_machines_is_not_rendered_for_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "spark2-31b-mtp", "--to", "kubernetes"]) == 2
    assert "a pod runs a server on one machine" in capsys.readouterr().err


def test_a_lock_pins_the_image_by_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmaspec.run.kept.lockfile import lock_file

    profile = tmp_path / "mine.yaml"
    profile.write_text((data.PROFILES / "tiny-cpu.yaml").read_text().replace("name: tiny-cpu", "name: mine"))
    digest = f"sha256:{'a' * 64}"
    lock = {
        "schema": 1,
        "profile": "mine",
        "engine": "docker",
        "plan": digest,
        "image": {"name": "gemmaspec/vllm-cpu:0.32.0", "digest": digest, "id": digest},
        "target": {"model": "state:tiny/tiny-target"},
        "versions": {"vllm": "0.32.0", "torch": "2", "transformers": "5"},
    }
    lock_file(load_profile(str(profile))).write_text(json.dumps(lock))
    out = tmp_path / "out"
    assert run(["render", str(profile), "--to", "kubernetes", "--out", str(out)]) == 0
    container = yaml.safe_load((out / "deployment.yaml").read_text())["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"gemmaspec/vllm-cpu:0.32.0@{digest}"


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed (Debian: kubernetes-client)")
def test_the_example_for_kserve_leaves_the_pod_to_its_own_object(tmp_path: Path) -> None:
    guide = (data.ROOT / "docs" / "guides" / "kubernetes.md").read_text().partition("## KServe and llm-d")[2]
    kustomization, service = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)[:2]
    assert run(["render", "spark-31b-mtp", "--to", "kubernetes", "--out", str(tmp_path / "k8s")]) == 0
    (tmp_path / "kustomization.yaml").write_text(kustomization)
    (tmp_path / "inference-service.yaml").write_text(service)
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kinds = [one["kind"] for one in yaml.safe_load_all(done.stdout)]
    assert sorted(kinds) == ["ConfigMap", "LLMInferenceService", "NetworkPolicy", "PersistentVolumeClaim"]
