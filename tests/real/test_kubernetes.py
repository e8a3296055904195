"""A rendered Deployment in a real Kubernetes, with vLLM itself: two nodes, the image of `make image`, the tiny pair.

`make test-kubernetes` runs it: building Kubernetes, loading the image into both nodes and two starts take minutes. It
prints how long each step took. Kubernetes 1.20 is what can be built here; a PodDisruptionBudget is policy/v1beta1 there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemmaspec.core.launcher.launch import plan_digest
from gemmaspec.core.profile.find import profile_names
from tests.support.fake_runtime import Done
from tests.support.printed import said
from tests.support.real import tiny_pair
from tests.support.two_hosts import Bed, NoTwoHosts
from tests.support.two_nodes import Cluster, two_nodes, until

pytestmark = [
    pytest.mark.skipif(os.environ.get("GEMMASPEC_KUBERNETES") != "1", reason="takes minutes: make test-kubernetes"),
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

IMAGE = "gemmaspec/vllm-cpu:0.32.0"
NAME = "gemmaspec-pod"
START_S = 900
QUESTION = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Count from one to twenty, in words."}],
    "temperature": 0,
    "max_tokens": 48,
}
VOLUME = """\
apiVersion: v1
kind: PersistentVolume
metadata: {{name: models}}
spec:
  capacity: {{storage: 100Gi}}
  accessModes: [ReadWriteOnce]
  hostPath: {{path: "{path}"}}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    began = time.monotonic()
    try:
        with two_nodes() as made:
            said("two nodes are ready", began)
            yield made
    except NoTwoHosts as why:
        pytest.skip(f"Kubernetes on this machine: {why}")


class Operator:
    """Who renders a profile and applies it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.profiles = folder / "profiles"
        self.profiles.mkdir()
        self.profile()

    def profile(self, text: str = "") -> None:
        """Write the profile `pod`."""
        (self.profiles / "pod.yaml").write_text(f"extends: tiny-cpu\nname: pod\n{text}")

    def run(self, *arguments: str) -> Done:
        """Run `gemmaspec …` to its end."""
        own = {"GEMMASPEC_PROFILES": str(self.profiles), "GEMMASPEC_STATE": str(self.folder / "state")}
        done = subprocess.run(
            [sys.executable, "-m", "gemmaspec", *arguments], capture_output=True, text=True, check=False,
            env={**self.cluster.environment, **own},
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def render(self) -> Path:
        """Render the profile, and return the folder, as this Kubernetes takes it."""
        folder = self.folder / "k8s"
        done = self.run("render", "pod", "--to", "kubernetes", "--out", str(folder), "--force")
        assert done.code == 0, done.err
        budget = folder / "disruption-budget.yaml"
        budget.write_text(budget.read_text().replace('"policy/v1"', '"policy/v1beta1"'))
        return folder

    def apply(self) -> str:
        """Render and apply; return what kubectl says."""
        done = self.cluster.kubectl("apply", "--server-side", "-k", str(self.render()))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pods(self) -> list[dict[str, Any]]:
        """The pods of the profile."""
        found: list[dict[str, Any]] = self.cluster.get("pods", "--selector", "gemmaspec.dev/profile=pod")["items"]
        return found

    def status(self) -> tuple[int, list[dict[str, Any]]]:
        """What `status --kubernetes` says."""
        done = self.run("status", "pod", "--kubernetes", "--json")
        assert done.out, done.err
        return done.code, json.loads(done.out)["pods"]


@pytest.fixture(scope="module")
def operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return Operator(cluster, tmp_path_factory.mktemp("operator"))


def load_image(bed: Bed) -> None:
    """Load the image of vLLM into both nodes."""
    kept = subprocess.Popen(["docker", "save", IMAGE], stdout=subprocess.PIPE)
    loads = [
        subprocess.Popen(["docker", "-H", host.socket, "load"], stdin=subprocess.PIPE) for host in (bed.one, bed.two)
    ]
    assert kept.stdout
    while block := kept.stdout.read(1 << 20):
        for load in loads:
            assert load.stdin
            load.stdin.write(block)
    for load in loads:
        load.communicate()
    assert [kept.wait(), *(load.returncode for load in loads)] == [0, 0, 0]


def test_the_server_accepts_every_shipped_profile_and_refuses_a_wrong_field(operator: Operator) -> None:
    began = time.monotonic()
    names = [name for name in profile_names() if name.partition("2-")[0] != "spark"]
    for name in names:
        folder = operator.folder / "all" / name
        done = operator.run("render", name, "--to", "kubernetes", "--out", str(folder))
        assert done.code == 0, done.err
        budget = folder / "disruption-budget.yaml"
        budget.write_text(budget.read_text().replace('"policy/v1"', '"policy/v1beta1"'))
        checked = operator.cluster.kubectl("apply", "--server-side", "--dry-run=server", "-k", str(folder))
        assert checked.returncode == 0, f"{name}: {checked.stderr}"
        assert len(checked.stdout.splitlines()) == 6
    said(f"the server accepts 6 objects of each of {len(names)} profiles", began)

    done = operator.run("render", "pod", "--to", "kubernetes", "--validate", "cluster")
    assert done.code == 1
    assert 'no matches for kind "PodDisruptionBudget" in version "policy/v1"' in done.err
    text = (operator.render() / "deployment.yaml").read_text().replace("medium:", "mediun:")
    refused = operator.cluster.kubectl("apply", "--server-side", "--validate=false", "-f", "-", stdin=text)
    assert (refused.returncode, "mediun" in refused.stderr) == (1, True)
    said("a wrong field", 0, refused.stderr)


def test_a_deployment_serves_is_changed_and_refuses_another_plan(operator: Operator) -> None:
    began = time.monotonic()
    load_image(operator.cluster.bed)
    said("the image is in both nodes", began)
    _make_volume(operator)
    first = _rolled_out(operator)
    _answers_and_drafts(operator)

    operator.profile("speculative: {num_speculative_tokens: 2}\npatches: {optional: [nvfp4-nan-scales]}\n")
    second = _rolled_out(operator)
    assert second["metadata"]["name"] != first["metadata"]["name"]
    plans = [one["metadata"]["annotations"]["gemmaspec.dev/plan-sha256"] for one in (first, second)]
    assert plans[0] != plans[1]
    assert _config_map(first) != _config_map(second)
    _answers_and_drafts(operator)

    _refuses_a_changed_plan(operator, second, right_sha256=False)
    _refuses_a_changed_plan(operator, second, right_sha256=True)


def _make_volume(operator: Operator) -> None:
    path, pair = operator.folder / "volume", tiny_pair()
    for role in ("target", "draft"):
        shutil.copytree(pair / f"tiny-{role}", path / "models" / role)
    subprocess.run(["chown", "-R", "1000:1000", path], check=True)
    done = operator.cluster.kubectl("apply", "-f", "-", stdin=VOLUME.format(path=path))
    assert done.returncode == 0, done.stderr


def _rolled_out(operator: Operator) -> dict[str, Any]:
    """Apply the profile; return its only pod, once it is ready by its own probes and runs the plan that it was given."""
    began = time.monotonic()
    applied = operator.apply()
    done = operator.cluster.kubectl(
        "rollout", "status", f"deployment/{NAME}", f"--timeout={START_S}s", timeout_s=START_S + 60
    )
    assert done.returncode == 0, done.stderr + operator.cluster.kubectl("describe", "pods").stdout
    until(lambda: len(operator.pods()) == 1, seconds=120, what="the pod before is gone")
    said("rolled out", began, applied + done.stdout)
    (pod,) = operator.pods()
    code, (status,) = operator.status()
    assert (code, status["state"], status["findings"]) == (0, "ready", [])
    assert status["name"] == pod["metadata"]["name"]
    assert status["report"]["plan_sha256"] == pod["metadata"]["annotations"]["gemmaspec.dev/plan-sha256"]
    said("status --kubernetes", 0, operator.run("status", "pod", "--kubernetes").out)
    return pod


def _config_map(pod: dict[str, Any]) -> str:
    (found,) = [one["configMap"]["name"] for one in pod["spec"]["volumes"] if "configMap" in one]
    return str(found)


def _answers_and_drafts(operator: Operator) -> None:
    """Ask through the Service: by the API server, and by the Service's address from the node without the pod."""
    cluster = operator.cluster
    through = f"/api/v1/namespaces/default/services/{NAME}:http/proxy"
    before = _drafts(cluster.request(f"{through}/metrics"))
    began = time.monotonic()
    answer = json.loads(cluster.request(f"{through}/v1/chat/completions", QUESTION))
    text = answer["choices"][0]["message"]["content"]
    drafts, tokens, taken = (
        now - then for now, then in zip(_drafts(cluster.request(f"{through}/metrics")), before, strict=True)
    )
    said("answered through the Service", began, f"{drafts} drafts, {tokens} draft tokens, {taken} accepted: {text!r}")
    assert min(drafts, taken) > 0

    address = cluster.get("service", NAME)["spec"]["clusterIP"]
    (pod,) = operator.pods()
    away = next(host for host in (cluster.bed.one, cluster.bed.two) if host.name != pod["spec"]["nodeName"])
    asked = subprocess.run(
        ["nsenter", f"--net=/run/netns/{away.namespace}", "curl", "--silent", "--noproxy", "*", "--max-time", "120",
         "--json", json.dumps(QUESTION), f"http://{address}:8321/v1/chat/completions"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)["choices"][0]["message"]["content"]


def _drafts(metrics: str) -> tuple[int, int, int]:
    """Return drafts, draft tokens and accepted tokens."""
    names = ("drafts", "draft_tokens", "accepted_tokens")
    found = (re.findall(rf"^vllm:spec_decode_num_{name}_total{{.*}} (\S+)$", metrics, re.M) for name in names)
    drafts, tokens, taken = (int(sum(map(float, values))) for values in found)
    return drafts, tokens, taken


def _refuses_a_changed_plan(operator: Operator, pod: dict[str, Any], *, right_sha256: bool) -> None:
    """Give the Deployment a ConfigMap whose plan somebody has changed; its sha256 is as it was, or that of the change."""
    cluster, name = operator.cluster, f"changed-{right_sha256}".lower()
    changed = cluster.get("configmap", _config_map(pod))
    plan = json.loads(changed["data"]["plan.json"]) | {"patches": [], "profile": "changed"}
    if right_sha256:
        plan["sha256"] = plan_digest(plan)
    data = {**changed["data"], "plan.json": json.dumps(plan)}
    text = yaml.safe_dump({**changed, "metadata": {"name": name}, "data": data})
    assert cluster.kubectl("create", "-f", "-", stdin=text).returncode == 0
    began = time.monotonic()
    spec = json.dumps([{"op": "replace", "path": "/spec/template/spec/volumes/0/configMap/name", "value": name}])
    done = cluster.kubectl("patch", "deployment", NAME, "--type=json", "--patch", spec)
    assert done.returncode == 0, done.stderr
    ended: list[tuple[int, dict[str, Any]]] = []
    until(lambda: _ended(operator, name, ended), seconds=240, what="the launcher has refused")
    code, status = ended[0]
    logged = cluster.kubectl("logs", status["name"])
    said(f"a changed plan, {name}", began, f"{status['state']}: {status['reason']}\n{logged.stdout}{logged.stderr}")
    assert f"exit code {5 if right_sha256 else 2}" in status["reason"]
    assert code == 1


def _ended(operator: Operator, config_map: str, ended: list[tuple[int, dict[str, Any]]]) -> bool:
    """Collect the pods with a ConfigMap that have ended, each with the exit code of `status`."""
    named = {one["metadata"]["name"] for one in operator.pods() if _config_map(one) == config_map}
    code, found = operator.status()
    ended += [(code, one) for one in found if one["state"] == "exited" and one["name"] in named]
    return bool(ended)
