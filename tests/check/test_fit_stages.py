"""A server in pipeline stages: its layers, memory and cache, beside vLLM's own functions, and what is said of its speed."""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from gemmaspec.check.fit.document import stage_rows
from gemmaspec.check.fit.kvgroups import KvCache, Unplannable, groups_of
from gemmaspec.check.fit.kvspec import kv_rules
from gemmaspec.check.fit.memory_plan import MemoryPlan
from gemmaspec.check.fit.roofline import roofline
from gemmaspec.check.use_cases.server_facts import plan_on
from gemmaspec.cli.app import run
from gemmaspec.core.profile.device import GIB
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.resolved.stages import BadPartition, batches_in_flight, layers_by_stage
from tests.support.fake_nvidia_smi import FakeNvidiaSmi, card
from tests.support.kv_shapes import ORACLE, owned
from tests.support.kv_shapes import cases as kv_cases
from tests.support.real import cpu_python

TWO_STAGES = ("serve.tensor_parallel_size=", "serve.pipeline_parallel_size=2")
ASK_INDICES = """
import json, os, sys
from vllm.distributed.utils import get_pp_indices
found = []
for layers, stages, partition in json.load(sys.stdin):
    os.environ.pop("VLLM_PP_LAYER_PARTITION", None)
    if partition is not None:
        os.environ["VLLM_PP_LAYER_PARTITION"] = partition
    try:
        found.append([get_pp_indices(layers, stage, stages) for stage in range(stages)])
    except ValueError:
        found.append(None)
print("\\n" + json.dumps(found))
"""


def plan_of(*sets: str, machine: str = "2x3090", partition: str | None = None) -> MemoryPlan:
    """The 31B without its draft in two stages, with the shapes that ship."""
    more = (f"env.VLLM_PP_LAYER_PARTITION='{partition}'",) if partition else ()
    overrides = (*TWO_STAGES, f"machine={machine}", *more, *sets)
    profile = load_profile("nvidia2-31b-mtp", overrides=overrides, no_spec=True).profile
    return plan_on(profile, "0.32.0", shapes=True)


def cuts(layers: int, stages: int, partition: str | None) -> list[list[int]] | None:
    try:
        return [[stage.start, stage.stop] for stage in layers_by_stage(layers, stages, partition)]
    except BadPartition:
        return None


@pytest.mark.real_process
def test_layers_are_divided_as_vllm_divides_them() -> None:
    wanted: list[tuple[int, int, str | None]] = [
        (layers, stages, None) for layers in (30, 35, 42, 48, 60, 61) for stages in (1, 2, 3, 4, 5, 7, 8)
    ]
    wanted += [(60, 2, "28,32"), (60, 2, "28, 32"), (60, 2, "28,30"), (60, 2, "20,20,20"), (60, 2, "a,b"), (60, 2, "")]
    command = [str(cpu_python()), "-c", ASK_INDICES]
    done = subprocess.run(command, input=json.dumps(wanted), capture_output=True, text=True, check=True, timeout=200)
    assert [cuts(*case) for case in wanted] == json.loads(done.stdout.splitlines()[-1])


def staged(case: dict[str, Any], source: random.Random) -> dict[str, Any]:
    """A made-up cache whose layers two or three stages have."""
    names = [f"target.{index}" for index in range(len(case["target"].layers))]
    cut = layers_by_stage(len(names), source.choice((2, 3)))
    stages = [{"names": [names[index] for index in stage], "available": source.randint(1, 2**36)} for stage in cut]
    return {**case, "draft": None, "stages": stages}


def our_blocks(case: dict[str, Any]) -> int | None:
    """The blocks that every stage gets; None where vLLM would not start."""
    rules = kv_rules("0.32.0", cpu=case["device"] == "cpu")
    in_flight = case["max_num_batched_tokens"] * case["batches"]
    try:
        groups = groups_of(owned(case, "0.32.0"), rules, hybrid=case["hybrid"], joins_windows=case["joins_windows"])
    except Unplannable:
        return None
    blocks = []
    for stage in case["stages"]:
        here = frozenset(stage["names"])
        cache = KvCache(groups=tuple(groups), rules=rules, in_flight=in_flight, here=here)
        if not cache.block_bytes:
            continue
        if not cache.starts_with(stage["available"], case["max_model_len"]):
            return None
        blocks.append(cache.num_blocks(stage["available"]))
    return min(blocks)


@pytest.mark.real_process
def test_every_stage_has_as_many_blocks_as_vllm_gives_it() -> None:
    source = random.Random(40)
    wanted = [staged(case, source) for case in kv_cases(150, seed=40) if not case["target"].layers[-1].shares_with]
    jobs = [
        {
            **{key: value for key, value in case.items() if key not in ("target", "draft")},
            "layers": [
                {
                    "name": layer.name,
                    "window": case["target"].layers[int(layer.name.split(".")[1])].window,
                    "kv_heads": layer.cache.kv_heads,
                    "head_dim": layer.cache.head_dim,
                    "dtype": case["dtype"],
                }
                for layer in owned(case, "0.32.0")
            ],
        }
        for case in wanted
    ]
    command = [str(cpu_python()), str(ORACLE)]
    done = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = [min(answer["num_blocks"]) if "num_blocks" in answer else None for answer in json.loads(done.stdout)]
    assert [our_blocks(case) for case in wanted] == theirs
    assert sum(blocks is not None for blocks in theirs) > 30


def test_a_stage_has_its_layers_and_everything_else_whole() -> None:
    plan = plan_of()
    one = plan.in_one_stage
    first, last = plan.by_stage
    assert [(rows["layers"], rows["fullest"]) for rows in stage_rows(plan)] == [([0, 29], False), ([30, 59], True)]
    norm = 2 * plan.models.target.text.hidden_size
    assert first.target.decoder + last.target.decoder == one.target.decoder + norm
    assert first.target.embeddings == last.target.embeddings == one.target.embeddings
    assert first.target.rotary == last.target.rotary == one.target.rotary
    assert one.cache.block_bytes == 2 * last.cache.block_bytes
    assert list(stage_rows(one)) == []


def test_a_partition_moves_layers_and_the_fullest_stage_decides() -> None:
    plan = plan_of(partition="40,20")
    first, last = plan.by_stage
    assert (len(first.layers_here), len(last.layers_here)) == (40, 20)
    assert first.weights > last.weights
    assert plan.stage == 0
    assert plan.longest == first.longest < last.longest


def test_each_stage_is_judged_by_the_memory_of_its_own_gpu() -> None:
    plan = plan_of()
    small, large = replace(plan.device, memory=16 * GIB), replace(plan.device, memory=32 * GIB)
    for each, fullest in (((small, large), 0), ((large, small), 1)):
        mixed = replace(plan, device=replace(small, each=each))
        assert [one.gpu.memory for one in mixed.by_stage] == [gpu.memory for gpu in each]
        assert mixed.stage == fullest
    alike = replace(plan, device=replace(plan.device, memory=small.memory))
    assert mixed.longest == alike.longest
    tiny = replace(plan.device, memory=8 * GIB)
    problems = replace(plan, device=replace(tiny, each=(large, tiny))).problems()
    assert any(problem.startswith("stage 2: loading takes") for problem in problems)


@pytest.mark.parametrize(
    ("stages", "runner", "asynchronous", "batches"),
    [(1, "v2", True, 2), (1, "v1", True, 2), (2, "v2", True, 3), (2, "v1", True, 2), (3, "v2", False, 3)],
)
def test_batches_in_flight(stages: int, runner: Any, asynchronous: bool, batches: int) -> None:
    assert batches_in_flight(stages, runner, asynchronous=asynchronous) == batches


def test_stages_make_one_request_no_faster_than_one_gpu() -> None:
    bound, one = roofline(plan_of()), roofline(plan_of().in_one_stage)
    assert bound
    assert bound == one


def test_fit_and_predict_say_what_stages_are_worth(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["nvidia2-31b-mtp", "--machine", "2x3090", "--no-spec"]
    sets = [word for one in TWO_STAGES for word in ("--set", one)]
    assert run(["fit", *asked, *sets]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "on 2 x rtx-3090" in said
    assert "stage 2 (rtx-3090, 23.56 GiB): layers 30 to 59" in said
    plain = [*sets, "--set", "speculative=", "--set", "draft="]
    assert run(["predict", *asked[:3], *plain, "--json"]) == 0
    prediction = json.loads(capsys.readouterr().out)
    assert (prediction["basis"], prediction["rows"]) == ("bound", [])
    assert any("no faster for it than one GPU with all layers" in note for note in prediction["notes"])


def test_a_draft_in_stages_is_refused_with_what_to_type_instead(capsys: pytest.CaptureFixture[str]) -> None:
    sets = [word for one in TWO_STAGES for word in ("--set", one)]
    assert run(["fit", "nvidia2-31b-mtp", "--machine", "2x3090", *sets, "--json"]) == 1
    refused = json.loads(capsys.readouterr().out)["refused"]
    assert any("GS218" in one and "--set serve.tensor_parallel_size=2, or keep" in one for one in refused)


def test_gpus_of_this_machine_are_the_stages_in_order(
    nvidia_smi: FakeNvidiaSmi, capsys: pytest.CaptureFixture[str]
) -> None:
    nvidia_smi.lists(
        card("NVIDIA GeForce RTX 5090", gib=31.84, capability="12.0"),
        card("NVIDIA GeForce RTX 4090", gib=23.99, capability="8.9"),
    )
    sets = [word for one in TWO_STAGES for word in ("--set", one)]
    assert run(["fit", "nvidia2-31b-mtp", "--machine", "here", "--no-spec", *sets, "--json"]) in (0, 1)
    document = json.loads(capsys.readouterr().out)
    stages = document["memory"]["stages"]
    assert [("5090" in row["gpu"], row["fullest"]) for row in stages] == [(True, False), (False, True)]
    assert document["memory"]["total"] == stages[1]["total"] < stages[0]["total"]
