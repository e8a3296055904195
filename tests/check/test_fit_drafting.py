"""What a draft costs in memory: what vLLM reserves for it, and what a full step needs beyond, against published servers."""

from __future__ import annotations

import json

import pytest

from gemmaspec.check.fit.memory_plan import MemoryPlan
from gemmaspec.check.use_cases.server_facts import plan_on
from gemmaspec.cli.app import run
from gemmaspec.core.profile.load import load_profile

GIB = 2**30
KEMPNER = (
    "target.model=google/gemma-4-31B-it",
    "target.quantization=fp8",
    "image=vllm/vllm-openai:v0.25.1",
    "serve.max_num_seqs=null",
    "serve.max_model_len=262144",
    "serve.attention_backend=null",
)
"""Kempner Institute's servers of a 31B in FP8, 0.25.1, 1,024 requests at once: GPU KV cache size of their logs."""


def plan_of(machine: str, k: int, *more: str) -> MemoryPlan:
    drafted = (f"speculative.num_speculative_tokens={k}",) if k else ()
    overrides = (*KEMPNER, f"machine={machine}", *drafted, *more)
    profile = load_profile("nvidia-31b-mtp", overrides=overrides, no_spec=not k).profile
    return plan_on(profile, "0.25.1", shapes=True)


@pytest.mark.parametrize(
    ("machine", "k", "tokens"),
    [("h100", 0, 365_231), ("h100", 3, 343_435), ("h200", 0, 894_418), ("h200", 3, 872_503), ("rtx-pro-6000", 0, 503_000)],
)  # fmt: skip
def test_a_published_server_has_the_cache_that_fit_computes(machine: str, k: int, tokens: int) -> None:
    plan = plan_of(machine, k)
    computed = plan.cache.logged_tokens(plan.available, plan.demand.max_model_len)
    assert computed == pytest.approx(tokens, rel=0.012)


def test_googles_four_bits_on_four_cards_have_the_published_cache() -> None:
    """club-3090, multi4/google-qat-w4a16, 2026-07-28: 650,262 tokens; docs/explanations/measured-memory.md says why."""
    overrides = (
        "machine=4xrtx-3090",
        "draft.model=google/gemma-4-31B-it-assistant",
        "speculative.num_speculative_tokens=2",
        "image=vllm/vllm-openai:v0.25.1",
        "serve.tensor_parallel_size=4",
        "serve.max_model_len=262144",
        "serve.gpu_memory_utilization=0.91",
        "serve.max_num_seqs=2",
        "serve.max_num_batched_tokens=4096",
        "serve.extra_args=[--disable-custom-all-reduce]",
    )
    plan = plan_on(load_profile("nvidia-31b-qat-mtp", overrides=overrides).profile, "0.25.1", shapes=True)
    computed = plan.cache.logged_tokens(plan.available, plan.demand.max_model_len)
    assert computed == pytest.approx(650_262, rel=0.02)


@pytest.mark.parametrize(("release", "reserved"), [("0.25.1", False), ("0.28.0", False), ("0.29.0", True)])
def test_runner_v2_reserves_graphs_from_0_29_on(release: str, reserved: bool) -> None:
    """profile_cudagraph_memory of v1/worker/gpu/model_runner.py returns 0 in the wheels of 0.24.0 to 0.28.0."""
    overrides = (*KEMPNER, "machine=h100", 'env.VLLM_USE_V2_MODEL_RUNNER="1"')
    plan = plan_on(load_profile("nvidia-31b-mtp", overrides=overrides).profile, release, shapes=True)
    graphs = next(overhead for overhead in plan.overheads if overhead.name == "CUDA graphs")
    assert (plan.demand.runner, graphs.reserved) == ("v2", reserved)
    reserving = sum(overhead.nbytes for overhead in plan.overheads if overhead.reserved)
    assert plan.available == plan.requested - plan.weights - reserving


@pytest.mark.parametrize(("machine", "cache"), [("rtx-3090", "int8_per_token_head"), ("rtx-4090", "fp8")])
def test_a_smaller_cache_is_advised_in_a_format_that_the_gpu_takes(
    machine: str, cache: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ("--set", "serve.kv_cache_dtype=bfloat16")
    assert run(["fit", "nvidia-31b-qat-mtp-24gb", "--machine", machine, *sets]) in (0, 1)
    assert f"--set serve.kv_cache_dtype={cache}" in capsys.readouterr().out
    lint = ["profile", "lint", "nvidia-31b-qat-mtp-24gb", "--set", f"machine={machine}", "--set"]
    assert run([*lint, f"serve.kv_cache_dtype={cache}"]) == 0


def test_a_draft_costs_its_weights_and_graphs_but_not_its_logits() -> None:
    alone, drafting = plan_of("h100", 0), plan_of("h100", 3)
    assert 1.5 < (alone.available - drafting.available) / GIB < 2.6, "2.25 GiB between the published logs"
    assert alone.beyond is None
    longer = plan_of("h100", 7)
    assert abs(longer.available - drafting.available) < 0.5 * GIB, "seven tokens reserve what three do"


def test_what_a_full_step_needs_beyond_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of("h100", 3)
    assert plan.beyond is not None
    assert plan.beyond.nbytes / GIB == pytest.approx(6 * 1024 * 3 * 262_144 / GIB, abs=0.1)
    words = [word for one in (*KEMPNER, "machine=h100") for word in ("--set", one)]
    assert run(["fit", "nvidia-31b-mtp", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["not_reserved"]["nbytes"] > 4 * GIB


@pytest.mark.parametrize(("release", "k", "gib"), [("0.25.1", 3, 3.0), ("0.25.1", 15, 15.0), ("0.32.0", 4, 2.0)])
def test_probabilistic_drafts_are_kept_for_every_request(release: str, k: int, gib: float) -> None:
    more = ("speculative.draft_sample_method=probabilistic", "serve.max_num_seqs=1024")
    profile = load_profile(
        "nvidia-31b-mtp", overrides=(*KEMPNER, "machine=h200", f"speculative.num_speculative_tokens={k}", *more)
    ).profile
    plan = plan_on(profile, release, shapes=True)
    assert plan.demand.runner == "v2"
    kept = next(overhead for overhead in plan.overheads if overhead.name == "draft logits")
    assert kept.nbytes / GIB == pytest.approx(gib)
