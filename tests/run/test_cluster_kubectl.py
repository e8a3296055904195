"""What the user's kubectl is asked, by a fake of it: `render --validate cluster` and `status --kubernetes`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemmaspec.cli.app import run

PLAN = "a" * 64


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a fake kubectl on PATH."""
    folder, programs = tmp_path / "cluster", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    script = programs / "kubectl"
    script.write_text(
        f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent.parent / "support" / "fake_kubectl.py"} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_KUBECTL", str(folder))
    (folder / "pods.json").write_text('{"items": []}')
    return folder


def calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def pod(
    name: str, *, ready: bool = True, plan: str = PLAN, state: Any = None, phase: str = "Running"
) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "llm",
            "name": name,
            "labels": {"app.kubernetes.io/name": "gemmaspec", "gemmaspec.dev/profile": "tiny-cpu"},
            "annotations": {"gemmaspec.dev/plan-sha256": plan},
        },
        "spec": {"containers": [{"name": "vllm", "image": "x"}], "nodeName": "node-1"},
        "status": {
            "phase": phase,
            "containerStatuses": [
                {"name": "vllm", "ready": ready, "restartCount": 0, "state": state or {"running": {}}, "imageID": "x@y"}
            ],
        },
    }


def give(folder: Path, *pods: dict[str, Any], **reports: dict[str, Any]) -> None:
    (folder / "pods.json").write_text(json.dumps({"items": pods}))
    for name, report in reports.items():
        (folder / f"report-{name}.json").write_text(json.dumps(report))


def report(after: str = "1" * 64, plan: str = PLAN) -> dict[str, Any]:
    file = {"path": "vllm/v1/x.py", "state": "applies", "line": 3, "sha256_after": after}
    patch = {"patch": "one", "required": True, "state": "applies", "files": [file]}
    return {"schema": 1, "profile": "tiny-cpu", "plan_sha256": plan, "vllm": {"version": "0.32.0"}, "patches": [patch]}


def test_the_api_server_is_asked_for_a_dry_run_of_every_object(cluster: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [
        "render",
        "tiny-cpu",
        "--to",
        "kubernetes",
        "--out",
        str(out),
        "--validate",
        "cluster",
        "--namespace",
        "llm",
    ]
    assert run(command) == 0
    (call,) = calls(cluster)
    assert "--dry-run=server" in call["words"]
    assert call["words"][-2:] == ["--namespace", "llm"]
    kinds = {one["kind"] for one in yaml.safe_load_all(call["stdin"])}
    assert kinds == {
        "ConfigMap",
        "PersistentVolumeClaim",
        "Deployment",
        "Service",
        "PodDisruptionBudget",
        "NetworkPolicy",
    }


def test_nothing_is_written_that_the_cluster_refuses(
    cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster / "stderr").write_text('error: unknown field "spec.template.spec.mediun"\x1b[2J\n')
    out = tmp_path / "out"
    assert run(["render", "tiny-cpu", "--to", "kubernetes", "--out", str(out), "--validate", "cluster"]) == 1
    said = capsys.readouterr().err
    assert 'the cluster refuses these objects:\n  error: unknown field "spec.template.spec.mediun"\n' in said
    assert not out.exists()


def test_without_a_cluster_or_kubectl_the_next_command_is_named(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster / "stderr").write_text("retry\nThe connection to the server localhost:8080 was refused\n")
    assert run(["status", "--kubernetes"]) == 4
    assert "cannot reach a cluster: The connection to the server localhost:8080" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert run(["status", "--kubernetes"]) == 4
    assert "kubectl is not installed" in capsys.readouterr().err


def test_status_reads_the_report_of_every_pod(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    give(cluster, pod("p-1"), pod("p-2"), **{"p-1": report(), "p-2": report()})
    assert run(["status", "tiny-cpu", "--kubernetes", "--namespace", "llm"]) == 0
    printed = capsys.readouterr().out
    assert "same      the plan and every patched file, in 2 of 2 pods" in printed
    listed = calls(cluster)[0]["words"]
    assert listed[listed.index("--selector") + 1] == "app.kubernetes.io/name=gemmaspec,gemmaspec.dev/profile=tiny-cpu"


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (report(plan="b" * 64), "it runs the plan bbbbbbbbbbbb, its annotation says aaaaaaaaaaaa"),
        (report(after="2" * 64), "vllm/v1/x.py is 222222222222, and 111111111111 in p-1"),
        ({"plan_sha256": PLAN, "vllm": 3, "patches": [None, {"files": 7}]}, "vllm/v1/x.py is missing"),
    ],
)
def test_a_pod_that_runs_something_else_is_exit_code_5(
    cluster: Path, second: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    give(cluster, pod("p-1"), pod("p-2"), **{"p-1": report(), "p-2": second})
    assert run(["status", "--kubernetes"]) == 5
    assert said in capsys.readouterr().out


def test_pods_of_two_plans_during_a_rollout_are_no_finding(cluster: Path) -> None:
    give(cluster, pod("p-1"), pod("p-2", plan="b" * 64), **{"p-1": report(), "p-2": report("2" * 64, "b" * 64)})
    assert run(["status", "--kubernetes"]) == 0


def test_each_state_has_its_word_and_exit_code(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    failed = pod("p-1", ready=False, state=waiting)
    failed["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": 5}}
    give(cluster, failed)
    assert run(["status", "tiny-cpu", "--kubernetes"]) == 1
    assert "exited" in (printed := capsys.readouterr().out)
    assert "CrashLoopBackOff, exit code 5" in printed
    give(cluster, pod("p-1", ready=False))
    assert run(["status", "tiny-cpu", "--kubernetes"]) == 0
    assert "starting" in capsys.readouterr().out
    give(cluster, pod("p-1"))
    assert run(["status", "--kubernetes"]) == 4
    assert "cannot read the report of p-1" in capsys.readouterr().out
    give(cluster)
    assert run(["status", "tiny-cpu", "--kubernetes"]) == 1


def test_an_unscheduled_pod_says_why(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = pod("p-1", ready=False, phase="Pending")
    one["status"]["containerStatuses"] = None
    one["status"]["conditions"] = [{"reason": "Unschedulable", "message": "0/3 nodes: Insufficient nvidia.com/gpu"}]
    give(cluster, one)
    assert run(["status", "--kubernetes", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["pods"]
    assert document["state"] == "starting"
    assert document["reason"] == "0/3 nodes: Insufficient nvidia.com/gpu"


@pytest.mark.parametrize("answer", ["", "{}", "[]", '{"items": [{}]}', '{"items": 3}'])
def test_an_answer_that_is_no_list_of_pods_is_one_error(cluster: Path, answer: str) -> None:
    (cluster / "pods.json").write_text(answer)
    assert run(["status", "--kubernetes"]) == 1


def test_a_namespace_is_for_a_cluster() -> None:
    assert run(["status", "--namespace", "llm"]) == 2
