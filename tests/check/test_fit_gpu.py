"""34 starts of vLLM on a GPU, as it measured them itself, beside what is computed: the cache exactly, the rest nearly."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.check.fit.memory_plan import MemoryPlan, Models
from gemmaspec.core.profile.device import Device
from gemmaspec.core.resolved.media import TOWERS
from tests.check.test_fit_plan import plan_of
from tests.support.fit_shapes import checkpoint

MEASURED: dict[str, Any] = json.loads((Path(__file__).parent.parent / "data" / "memory-h200-0.26.0.json").read_text())
STARTS = {start["name"]: start for start in MEASURED["starts"]}


@cache
def planned(name: str) -> MemoryPlan:
    """The same start, computed."""
    start = STARTS[name]
    nvfp4, pair = "nvfp4" in name, name.startswith("pair")
    target = checkpoint("E2B" if name.startswith("draft") else "31B", nvfp4=nvfp4, towers=start["images"])
    draft = checkpoint("E2B", nvfp4=nvfp4) if pair else None
    dtype = "bfloat16" if start["cache_dtype"] == "auto" else start["cache_dtype"]
    flags = replace(
        plan_of(vllm=MEASURED["vllm"]).demand,
        **{key: start[key] for key in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "hybrid", "eager")},
        cache_dtype=dtype,
        draft_cache_dtype=dtype,
        towers=TOWERS if start["images"] else frozenset(),
        utilization=start["utilization"],
        method="draft_model" if pair else None,
        draft_tokens=start["k"],
        runner=f"v{start['runner']}",
    )
    return MemoryPlan(
        Models(target=target, draft=draft), flags, Device(name="h200", memory=start["total"], capability="9.0")
    )


def estimated(name: str, *estimates: str) -> int:
    return sum(one.nbytes for one in planned(name).overheads if one.name in estimates)


@pytest.mark.parametrize("name", STARTS)
def test_blocks_and_groups_are_exactly_those_of_the_gpu(name: str) -> None:
    start, cache_ = STARTS[name], planned(name).cache
    assert cache_.num_blocks(start["available"]) == start["num_blocks"]
    assert sorted([len(group.layers), group.block_size] for group in cache_.groups) == start["groups"]


@pytest.mark.parametrize("name", STARTS)
def test_weights_are_within_three_percent(name: str) -> None:
    assert planned(name).weights == pytest.approx(STARTS[name]["weights"], rel=0.03)
    assert planned(name).loading == pytest.approx(STARTS[name]["load_peak"], rel=0.031)


@pytest.mark.parametrize("name", STARTS)
def test_activations_are_no_less_than_measured_and_not_much_more(name: str) -> None:
    first = () if STARTS[name]["compiled_before"] else ("compiling",)
    computed, measured = estimated(name, "activations", *first), STARTS[name]["activations"]
    assert 0.93 * measured < computed < 1.16 * measured or "draft-nvfp4-eager-images" in name


def test_images_and_a_first_compile_are_within_a_hundredth_where_they_are_the_peak() -> None:
    for name in ("pair-nvfp4-eager-images", "pair-nvfp4-default", "pair-bf16-default", "draft-nvfp4-default"):
        computed = estimated(name, "activations", "compiling")
        assert computed == pytest.approx(STARTS[name]["activations"], rel=0.01), name


@pytest.mark.parametrize("name", [name for name, start in STARTS.items() if start["graphs"]])
def test_graphs_are_within_forty_megabytes(name: str) -> None:
    assert abs(estimated(name, "CUDA graphs") - STARTS[name]["graphs"]) < 40e6


@pytest.mark.parametrize("name", STARTS)
def test_what_is_left_for_the_cache_is_within_a_hundredth(name: str) -> None:
    later = estimated(name, "compiling") if STARTS[name]["compiled_before"] else 0
    assert planned(name).available + later == pytest.approx(STARTS[name]["available"], rel=0.009)
