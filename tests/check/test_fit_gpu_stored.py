"""Starts on a GPU with stored weights, and servers: what they logged, beside what is computed (docs/explanations/measured-memory.md)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.check.fit.memory_plan import MemoryPlan, Models
from gemmaspec.core.profile.device import Device
from gemmaspec.core.resolved.media import TOWERS
from tests.check.test_fit_plan import plan_of
from tests.support.fit_shapes import checkpoint

MEASURED: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "memory-h200-0.26.0-stored.json").read_text()
)
STARTS = {start["name"]: start for start in MEASURED["starts"]}
SERVED = {start["name"]: start for start in MEASURED["served"]}
TOTAL = MEASURED["starts"][0]["total"]


def planned(start: dict[str, Any]) -> MemoryPlan:
    """The same start, computed."""
    pair = start["k"] > 0
    flags = replace(
        plan_of(vllm=MEASURED["vllm"]).demand,
        **{key: start[key] for key in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "hybrid", "eager")},
        cache_dtype=start["cache_dtype"],
        draft_cache_dtype=start["cache_dtype"],
        towers=TOWERS if start["images"] else frozenset(),
        utilization=start["utilization"],
        method="draft_model" if pair else None,
        draft_tokens=start["k"],
        runner="v1" if start["runner"] == 1 else "v2",
    )
    target = checkpoint("31B", nvfp4=True, towers=start["images"])
    models = Models(target=target, draft=checkpoint("E2B", nvfp4=True) if pair else None)
    return MemoryPlan(models, flags, Device(name="h200", memory=TOTAL, capability="9.0"))


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_the_cache_is_what_the_budget_leaves_to_the_byte(start: dict[str, Any]) -> None:
    counted = sum(start[part] for part in ("weights", "non_torch", "activations", "graphs_counted"))
    assert start["requested"] - counted == start["available"]


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_blocks_groups_and_weights_are_those_of_stored_weights_too(start: dict[str, Any]) -> None:
    plan = planned(start)
    assert plan.cache.num_blocks(start["available"]) == start["num_blocks"]
    assert sorted([len(group.layers), group.block_size] for group in plan.cache.groups) == start["groups"]
    assert plan.weights == pytest.approx(start["weights"], rel=0.02)
    peak = sum(one.nbytes for one in plan.overheads if one.name == "activations")
    assert peak == pytest.approx(start["activations"], rel=0.006)
    assert plan.available == pytest.approx(start["available"], rel=0.008)


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_the_gpu_held_what_is_told_as_the_most_while_loading(start: dict[str, Any]) -> None:
    held = planned(start).held
    assert held
    assert 0.98 * start["load_gpu_used"] < held < 1.06 * start["load_gpu_used"]


def test_a_server_used_more_than_its_share_as_the_note_says() -> None:
    """Where no image was profiled; those starts left what images would have taken."""
    for name in ("target-nvfp4-eager-stored", "pair-nvfp4-eager-stored"):
        start = STARTS[name]
        assert 0.8 <= (start["served_gpu_used"] - start["requested"]) / 2**30 <= 1.4


@pytest.mark.parametrize("start", SERVED.values(), ids=SERVED)
def test_servers_had_the_memory_that_is_computed(start: dict[str, Any]) -> None:
    """At most 0.7 % more is promised than there was, and no less: weights are counted 2 % too small."""
    plan, logged = planned(start), start["logged"]
    peak = sum(one.nbytes for one in plan.overheads if one.name in ("activations", "compiling"))
    assert plan.weights / 2**30 == pytest.approx(logged["loading"], rel=0.02)
    assert peak / 2**30 == pytest.approx(logged["activations"], abs=0.08)
    assert 1 <= plan.available / 2**30 / logged["available"] < 1.007


@pytest.mark.parametrize("start", SERVED.values(), ids=SERVED)
def test_servers_logged_the_tokens_that_are_computed(start: dict[str, Any]) -> None:
    cache, logged, tokens = planned(start).cache, start["logged"], start["max_model_len"]
    available = round(logged["available"] * 2**30)  # logged to the hundredth
    assert cache.logged_tokens(available, tokens) == pytest.approx(logged["kv_tokens"], rel=2e-4)
    assert cache.concurrency(available, tokens) == pytest.approx(logged["concurrency"], abs=0.01)
