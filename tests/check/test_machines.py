"""The machines that a profile can name: kinds, and hosts with several of one kind's GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmaspec.check.use_cases.lint import LintRequest, lint
from gemmaspec.check.use_cases.server_facts import plan_on
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.machines import MACHINES, as_named, counted_name, machine_kind, machine_with
from gemmaspec.core.releases.backends import backend_for, support_of
from gemmaspec.core.releases.facts import newest
from tests.support.lint_cases import BASE

CARDS = ("rtx-3090", "rtx-4090", "rtx-5090", "rtx-a6000", "rtx-6000-ada", "rtx-pro-6000", "a10", "l4", "l40s")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("2x5090", "2xrtx-5090"),
        ("2 x RTX 3090", "2xrtx-3090"),
        ("5090x2", "2xrtx-5090"),
        ("8xH100", "8xh100"),
        ("1x3090", "rtx-3090"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("RTX A6000", "rtx-a6000"),
        ("gb10", "dgx-spark"),
        ("2xnvidia", "2xnvidia"),
    ],
)
def test_people_write_a_machine_in_many_ways_and_one_is_kept(written: str, name: str) -> None:
    assert as_named(written) == name
    assert name in MACHINES
    assert as_named(name) == name


@pytest.mark.parametrize("name", ["9xh100", "2xdgx-spark", "2xcpu", "2xh1000", "0xh100", "x", "nonsense", "2x"])
def test_what_no_machine_is_stays_as_it_was(name: str) -> None:
    assert as_named(name) not in MACHINES
    assert MACHINES.get(name) is None


def test_a_number_before_a_kind_is_how_many_gpus_it_has() -> None:
    two, kind = MACHINES["2xrtx-5090"], MACHINES["rtx-5090"]
    assert (two.most_gpus, two.count, two.memory_gb) == (2, 2, kind.memory_gb)
    assert kind.count is None
    assert (kind.most_gpus or 0) > 1
    assert machine_kind("2xrtx-5090") == machine_kind("rtx-5090") == "rtx-5090"
    assert "2xrtx-5090" not in list(MACHINES), "a list names the kinds"


def test_gpus_of_nvidia_smi_make_a_machine() -> None:
    assert machine_with(()) is None
    assert machine_with(["NVIDIA L20"]) is None
    assert machine_with(["NVIDIA H100 80GB HBM3"] * 8) == "8xh100"
    assert machine_with(["NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 4090"]) == "rtx-3090"
    assert counted_name("l4", 1) == "l4"


@pytest.mark.parametrize("name", CARDS)
def test_a_card_that_people_own_has_everything_that_a_start_depends_on(name: str) -> None:
    card = MACHINES[name]
    assert card.size_gb
    assert card.memory_gb
    assert card.bandwidth_gb_s
    assert card.size_gb * 2**30 * 0.9 < card.memory_gb * 1e9 < card.size_gb * 2**30
    assert machine_with([*card.gpu_names[:1]]) == name
    backend = backend_for(newest(), card.compute_capability, masks=True, fp8=False)
    assert backend == "TRITON_ATTN"
    assert support_of(newest(), card.compute_capability, backend, fp8=False, head="draft") == "ALWAYS"


def test_a_profile_names_a_host_with_two_cards(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(BASE.replace("machine: h200", "machine: 2x5090"))
    assert load_profile(str(file)).profile.machine == "2xrtx-5090"


@pytest.mark.parametrize(
    ("machine", "gpus", "wrong"),
    [("rtx-5090", 2, False), ("2x5090", 2, False), ("2x5090", 4, True), ("dgx-spark", 2, True), ("8xh100", 8, False)],
)
def test_lint_counts_the_gpus_of_a_host(machine: str, gpus: int, wrong: bool) -> None:
    overrides = (f"machine={machine}", f"serve.tensor_parallel_size={gpus}")
    (linted,) = lint(LintRequest(names=("nvidia-31b-mtp",), overrides=overrides))
    assert ("GS225" in {finding.code for finding in linted.findings}) is wrong


def test_the_memory_of_a_host_is_that_of_one_gpu() -> None:
    profile = load_profile("nvidia-31b-mtp", overrides=("machine=2x5090", "serve.tensor_parallel_size=2")).profile
    plan = plan_on(profile, "0.32.0", shapes=True)
    assert plan.device.gpus == 2
    assert plan.device.memory == plan_on(profile, "0.32.0", machine="rtx-5090", shapes=True).device.memory
    assert not plan.problems()
    three = load_profile("nvidia-31b-mtp", overrides=("machine=2x5090", "serve.tensor_parallel_size=4")).profile
    assert any("2 GPUs" in problem for problem in plan_on(three, "0.32.0", shapes=True).problems())
