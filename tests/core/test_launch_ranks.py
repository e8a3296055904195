"""What a rank of a server on several machines is held to, and what it reports for the host to compare."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gemmaspec.core import data
from gemmaspec.core.fleet.reports import reports_disagree
from gemmaspec.core.launcher import rank_facts
from tests.support.launching import Done, Place, make_place, plan_of

SERVE = ("vllm", "serve", "owner/model", "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1")


def test_a_model_is_known_by_commit_or_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    refs = tmp_path / "hub/models--owner--name/refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("e" * 40 + "\n")
    (refs / "odd").write_text("not a commit")
    assert rank_facts.model_facts("owner/name", None) == "e" * 40
    assert rank_facts.model_facts("owner/name", "f" * 40) == "f" * 40
    assert [rank_facts.model_facts("owner/name", one) for one in ("odd", "absent")] == ["", ""]
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"12")
    before = rank_facts.model_facts(str(folder), None)
    (folder / "README.md").write_text("anything")
    assert rank_facts.model_facts(str(folder), None) == before
    (folder / "config.json").write_text("[]")
    assert rank_facts.model_facts(str(folder), None) != before


@pytest.fixture
def machines(tmp_path: Path) -> list[Place]:
    return [make_place(tmp_path / name) for name in ("a", "b")]


def nccl(place: Place, version: str) -> None:
    info = place.package.parent / f"nvidia_nccl_cu13-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: {version}\n\n")


def reported(machines: Sequence[Place], *words: str) -> list[Done]:
    found = [one.launch(plan_of(), *SERVE, *words) for one in machines]
    assert [one.code for one in found] == [0, 0], found
    return found


def wrong(found: Sequence[Done]) -> str:
    error = reports_disagree("pair", {name: one.report for name, one in zip("ab", found, strict=True)})
    return error.message if error else ""


def test_ranks_that_are_the_same_report_the_same(machines: list[Place]) -> None:
    assert wrong(reported(machines, "--revision", "f" * 40)) == ""


def test_another_nccl_and_another_model_are_told(machines: list[Place], tmp_path: Path) -> None:
    nccl(machines[0], "2.30.4")
    assert wrong(reported(machines)) == ""  # what one machine does not know is no difference
    nccl(machines[1], "2.29.1")
    assert "nccl is 2.30.4 on a and 2.29.1 on b" in wrong(reported(machines))
    one, other = (reported(machines, "--revision", commit * 40)[0] for commit in "ef")
    assert "target is eeee" in wrong([one, other])


def test_another_file_of_vllm_under_the_same_plan_is_told(machines: list[Place]) -> None:
    core = machines[1].package / "v1/core.py"
    core.write_text(core.read_text() + "\n\nMORE = 1\n")
    assert "vllm/v1/core.py is" in wrong(reported(machines))


@pytest.mark.parametrize(
    ("version", "words", "hangs"),
    [("2.28.9", (), True), ("2.30.4", (), False), ("2.28.9", ("--enforce-eager",), False)],
)
def test_an_nccl_that_hangs_in_replayed_graphs_is_said(
    machines: list[Place], version: str, words: tuple[str, ...], hangs: bool
) -> None:
    nccl(machines[0], version)
    done = machines[0].launch(plan_of(), *SERVE, *words)
    assert (done.code, done.report["ranks"]["nccl"]) == (0, version)
    assert (f"WARNING: NCCL {version} between machines" in done.err) == hangs


def test_no_secret_is_reported(machines: list[Place]) -> None:
    assert all("hush" not in json.dumps(one.report) for one in reported(machines, "--api-key", "hush"))


def test_an_unexpected_plan_is_refused_before_anything_else(machines: list[Place]) -> None:
    one, plan = machines[0], plan_of()
    done = one.launch(plan, options=("--expect-plan", "0" * 64))
    assert (done.code, done.report, done.out) == (5, {}, "")
    assert f"is the plan {plan['sha256'][:12]}…, not 000000000000…" in done.err
    assert not one.run_dir.exists()
    assert one.launch(plan, options=("--expect-plan", str(plan["sha256"]))).code == 0
    assert one.launch(plan, options=("--expect-plan", "main")).code == 2


def test_a_launcher_without_its_facts_starts_nothing(machines: list[Place], tmp_path: Path) -> None:
    one = machines[0]
    one.write_plan(plan_of())
    alone = tmp_path / "launch.py"
    for name in ("launch.py", "origins.py", "asked.py", *data.LAUNCHER.parent.glob("attest*.py")):
        source = data.LAUNCHER.with_name(Path(name).name)
        (tmp_path / source.name).write_bytes(source.read_bytes())
    argv = one.argv(*SERVE)
    argv[argv.index(str(data.LAUNCHER))] = str(alone)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert (done.returncode, "rank_facts.py is missing" in done.stderr) == (4, True)
