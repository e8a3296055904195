"""Flags, weights, overhead and what they leave, for profiles on machines."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmaspec.check.fit.advice import advice
from gemmaspec.check.fit.demand import Demand, demand_of
from gemmaspec.check.fit.memory_plan import MemoryPlan, Models
from gemmaspec.check.fit.overhead import graph_sizes
from gemmaspec.check.fit.weights import weights_of
from gemmaspec.core.checkpoint.model import Checkpoint, Quantization
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.device import GIB, Device, named
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.resolved.resolve import resolved_of
from tests.support.fit_shapes import checkpoint

SPARK, H200, A100 = (named(MACHINES[name]) for name in ("dgx-spark", "h200", "a100"))
CPU = Device(name="cpu", memory=24 * GIB, cpu=True)


def plan_of(
    *sets: str,
    profile: str = "spark-31b-e2b",
    vllm: str = "0.32.0",
    device: Device | None = SPARK,
    no_spec: bool = False,
    target: Checkpoint | None = None,
) -> MemoryPlan:
    """A shipped profile with the published shapes, and the model runner that the release chooses."""
    assert device
    own_runner = ("env.VLLM_USE_V2_MODEL_RUNNER=",) if profile == "spark-31b-e2b" else ()
    loaded = load_profile(profile, overrides=(*own_runner, *sets), no_spec=no_spec).profile
    model = target or checkpoint("31B", nvfp4=True, towers=False)
    draft = checkpoint("E2B", nvfp4=True, towers=False) if loaded.draft else None
    resolved = resolved_of(loaded, vllm=vllm, device=device, target=model, draft=draft)
    return MemoryPlan(Models(target=model, draft=draft), demand_of(resolved), device)


def flags(*sets: str, **more: Any) -> Demand:
    return plan_of(*sets, **more).demand


@pytest.mark.parametrize(
    ("device", "vllm", "sequences", "batch"),
    [
        (SPARK, "0.19.0", 256, 2048),
        (SPARK, "0.32.0", 256, 2048),
        (A100, "0.32.0", 256, 2048),
        (SPARK, "0.33.0", 256, 2048),
        (H200, "0.33.0", 1024, 8192),
        (Device(name="b200", memory=180 * GIB, capability="10.0"), "0.28.0", 1024, 16384),
        (Device(name="b200", memory=180 * GIB, capability="10.0"), "0.27.0", 1024, 8192),
        (Device(name="4090", memory=24 * GIB, capability="8.9"), "0.32.0", 256, 2048),
        (CPU, "0.32.0", 128, 2048),
    ],
)
def test_defaults_by_machine_and_release(device: Device, vllm: str, sequences: int, batch: int) -> None:
    found = flags("serve.max_num_seqs=null", device=device, vllm=vllm)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (sequences, batch)
    assert "max_num_seqs" in found.defaults
    assert "max_model_len" not in found.defaults


def test_a_model_that_looks_at_images_both_ways_gets_a_batch_for_a_whole_video() -> None:
    images = checkpoint("31B", nvfp4=True)
    assert flags(device=CPU, target=images).max_num_batched_tokens == 2496
    assert flags(device=CPU, target=images, vllm="0.21.0").max_num_batched_tokens == 2048
    assert flags("serve.max_num_batched_tokens=512", device=CPU, target=images).max_num_batched_tokens == 512


def test_the_cache_format_is_asked_for_or_declared_or_the_models_own() -> None:
    plain = checkpoint("31B")
    declared = replace(plain, quantization=Quantization(method="modelopt", kv_cache="FP8"))
    assert flags().cache_dtype == "fp8"
    assert flags("serve.kv_cache_dtype=null", target=plain).cache_dtype == "bfloat16"
    assert flags("serve.kv_cache_dtype=null", target=declared).cache_dtype == "fp8"
    assert flags("serve.kv_cache_dtype=bfloat16", target=declared).cache_dtype == "bfloat16"
    assert flags("speculative.kv_cache_dtype=bfloat16").draft_cache_dtype == "bfloat16"


NGRAM = (
    *("speculative.method=ngram", "speculative.draft_tensor_parallel_size=null", "draft=null"),
    "speculative.num_speculative_tokens=2",
)


@pytest.mark.parametrize(
    ("sets", "vllm", "batches"),
    [
        ((), "0.26.0", 2),
        (("serve.async_scheduling=false",), "0.32.0", 1),
        (NGRAM, "0.32.0", 1),
        (NGRAM, "0.33.0", 2),
    ],
)
def test_batches_in_flight(sets: tuple[str, ...], vllm: str, batches: int) -> None:
    found = flags(*sets, vllm=vllm)
    assert found.batches == batches
    assert found.in_flight == batches * found.max_num_batched_tokens
    assert flags(vllm="0.25.0").in_flight == flags().max_num_batched_tokens


@pytest.mark.parametrize(
    "override",
    [
        "serve.extra_args=[--kv-cache-dtype-skip-layers, sliding_window]",
        "serve.extra_args=[--cpu_offload_gb=4]",
        "serve.kv_cache_dtype=turboquant_k8v4",
        "env.VLLM_KV_CACHE_LAYOUT=BLHNC",
    ],
)
def test_what_is_not_computed_is_refused(override: str) -> None:
    with pytest.raises(UsageError, match=r"fit (?:does not|cannot)"):
        plan_of(override)


def test_weights_are_the_tensors_and_the_keys_twice_where_they_are_the_values() -> None:
    model = checkpoint("31B")
    keys = sum(tensor.nbytes for tensor in model.tensors if "k_proj" in tensor.name) // 2
    full = sum(
        tensor.nbytes
        for tensor in model.tensors
        if "k_proj" in tensor.name and model.text.layers[int(tensor.name.split(".")[3])].kind == "full"
    )
    found = weights_of(model, vllm="0.32.0")
    assert found.total == model.nbytes + full + found.rotary
    assert found.rotary == 2 * 262_144 * (256 + 512)
    assert 0 < full < keys
    assert weights_of(model, vllm="0.32.0", towers=()).total == found.total - found.towers


def test_keys_of_layers_that_share_a_cache_stay_away_from_0_30() -> None:
    model = checkpoint("E2B")
    before, after = (weights_of(model, vllm=vllm).total for vllm in ("0.29.0", "0.30.0"))
    assert before == model.nbytes + 2 * 131_072 * (256 + 512)
    shared = [index for index, layer in enumerate(model.text.layers) if layer.shares_with is not None]
    unread = sum(
        tensor.nbytes
        for tensor in model.tensors
        if any(f".layers.{index}.self_attn.{part}" in tensor.name for index in shared for part in ("k_p", "v_p"))
    )
    assert before - after == unread > 0


def test_fp8_while_loading_halves_linear_layers_and_nothing_else() -> None:
    plain = weights_of(checkpoint("E4B"), vllm="0.32.0")
    online = weights_of(checkpoint("E4B"), vllm="0.32.0", fp8_online=True)
    assert (online.decoder * 2, online.embeddings, online.per_layer) == (
        plain.decoder,
        plain.embeddings,
        plain.per_layer,
    )


def test_a_mixture_reads_the_experts_that_its_tokens_choose() -> None:
    found = weights_of(checkpoint("26B-A4B"), vllm="0.32.0")
    one, many = found.read(1), found.read(10_000)
    assert one == pytest.approx(found.decoder + found.embeddings + found.experts * 8 / 128, rel=1e-6)
    assert many == pytest.approx(found.decoder + found.embeddings + found.experts, rel=1e-6)


def test_a_share_is_of_all_the_memory_and_must_be_free_at_the_start() -> None:
    assert SPARK
    busy = replace(SPARK, free=90 * 10**9)
    assert plan_of().problems() == []
    (problem,) = plan_of(device=busy).problems()
    assert "83.82 GiB of 121.69 GiB are free now, but vLLM requires 97.35 GiB" in problem
    (found,) = [one for one in advice(plan_of(device=busy)) if "utilization" in one.change]
    assert found.starts
    shorter, length = found.change.split(" --set ")[0], found.longest
    assert (shorter, found.change.endswith(f"serve.max_model_len={length}")) == (
        "--set serve.gpu_memory_utilization=0.68",
        True,
    )
    (enough,) = [one for one in advice(plan_of(device=replace(busy, free=100 * 10**9))) if "utilization" in one.change]
    assert enough.starts
    assert enough.change == "--set serve.gpu_memory_utilization=0.71"


def test_what_is_too_long_says_how_long_it_may_be() -> None:
    plan = plan_of("serve.kv_cache_dtype=bfloat16")
    (problem,) = plan.problems()
    assert problem.startswith("one request of 131,072 tokens needs 112.25 GiB of KV cache")
    found = {one.change.partition("=")[0]: one for one in advice(plan)}
    assert next(iter(found)) == "--set serve.kv_cache_dtype"
    shortened = plan_of("serve.kv_cache_dtype=bfloat16", f"serve.max_model_len={plan.longest}")
    assert shortened.problems() == []
    assert plan_of("serve.kv_cache_dtype=bfloat16", f"serve.max_model_len={plan.longest + 1}").problems()


def test_the_missing_patch_is_the_first_advice() -> None:
    plan = plan_of("patches.required=[]")
    assert plan.problems() == [
        "target and draft have different sliding windows, but one group can have only one: the start fails"
    ]
    first = advice(plan)[0]
    assert first.change == "patches.required: add kv-spec-uniform-valueerror"
    assert first.starts


def test_every_advice_that_says_so_starts() -> None:
    plan = plan_of("serve.kv_cache_dtype=bfloat16", "serve.max_num_seqs=null", profile="spark-e2b", device=SPARK)
    changes = [one for one in advice(plan) if one.starts and one.change.startswith("--set")]
    assert plan.problems()
    assert changes
    for one in changes:
        override = one.change.removeprefix("--set ")
        again = plan_of("serve.kv_cache_dtype=bfloat16", "serve.max_num_seqs=null", override, profile="spark-e2b")
        assert again.problems() == [], one


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--max-num-seqs=64", "write --max-num-seqs as serve.max_num_seqs"),
        ("--max_model_len", "write --max-model-len as serve.max_model_len, a number"),
        ("-tp", "write --tensor-parallel-size as serve.tensor_parallel_size"),
        ("--limit-mm-per-prompt.video=0", "--limit-mm-per-prompt"),
        ("-cc.mode=0", "--compilation-config"),
    ],
)
def test_flags_that_count_are_not_passed_over_in_extra_args(argument: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        flags(f"serve.extra_args=[{argument}]")


def test_no_advice_takes_more_of_a_shared_memory_than_lint_lets_pass() -> None:
    tight: dict[str, Any] = {"vllm": "0.30.0", "target": checkpoint("31B", nvfp4=False, towers=False)}
    shared = [one.change for one in advice(plan_of("serve.gpu_memory_utilization=0.6", **tight))]
    assert "--set serve.gpu_memory_utilization=0.85" in shared
    own = [one.change for one in advice(plan_of("serve.gpu_memory_utilization=0.5", device=H200, **tight))]
    assert "--set serve.gpu_memory_utilization=0.91" in own  # as little as lets it start


def test_two_gpus_load_half_each() -> None:
    one, two = (
        plan_of(device=H200),
        plan_of("serve.tensor_parallel_size=2", "speculative.draft_tensor_parallel_size=2", device=H200),
    )
    assert one.loading / 2 < two.loading < one.loading / 2 + one.target.rotary + (one.draft.rotary if one.draft else 0)


def test_the_hybrid_manager_is_not_advised_where_a_draft_cannot_take_it() -> None:
    def names(plan: MemoryPlan) -> list[str]:
        return [one.change for one in advice(plan)]

    hybrid = "--set serve.disable_hybrid_kv_cache_manager=null"
    assert hybrid in names(plan_of(vllm="0.32.0"))
    assert hybrid not in names(plan_of(vllm="0.30.0"))
    assert hybrid in names(plan_of(vllm="0.30.0", no_spec=True))


@settings(max_examples=25)
@given(
    length=st.integers(1, 262_144),
    sequences=st.integers(1, 512),
    batch=st.integers(1, 16_384),
    k=st.integers(0, 8),
    share=st.floats(0.3, 0.95),
)
def test_more_of_anything_leaves_no_more(length: int, sequences: int, batch: int, k: int, share: float) -> None:
    plan = plan_of()
    small = MemoryPlan(
        plan.models,
        replace(
            plan.demand,
            max_model_len=length,
            max_num_seqs=sequences,
            max_num_batched_tokens=batch,
            draft_tokens=k,
            utilization=share,
            eager=True,
        ),
        plan.device,
    )
    for more in (
        {"max_num_seqs": 2 * sequences},
        {"max_num_batched_tokens": 2 * batch},
        {"draft_tokens": k + 1},
        {"utilization": share - 0.1},
    ):
        larger = MemoryPlan(plan.models, replace(small.demand, **more), plan.device)  # type: ignore[arg-type]
        assert larger.available <= small.available
        assert larger.longest <= small.longest


@pytest.mark.parametrize(("sequences", "k", "number"), [(4, 0, 4), (8, 0, 5), (4, 4, 6), (8, 4, 11), (256, 0, 51)])
def test_captured_batch_sizes(sequences: int, k: int, number: int) -> None:
    """As 0.26.0 logged them: [1, 2, 4, 8], [5, 10, 20, 25, 35, 40] …"""
    spec = (f"speculative.num_speculative_tokens={k}",) if k else ()
    assert graph_sizes(flags(f"serve.max_num_seqs={sequences}", *spec, no_spec=not k), SPARK) == number


@pytest.mark.parametrize(("vllm", "number"), [("0.28.0", 51), ("0.29.0", 57), ("0.32.0", 57)])
def test_graphs_in_pieces_are_captured_for_every_size_and_none_for_none(vllm: str, number: int) -> None:
    """_set_cudagraph_sizes of 0.28.0, 0.29.0 and 0.32.0 for k = 4 and 256 requests; 1, 2, 4, 5, 8, 10 … from 0.29.0."""
    whole = replace(flags("serve.max_num_seqs=256", "speculative.num_speculative_tokens=4"), vllm=vllm)
    assert graph_sizes(replace(whole, graphs="PIECEWISE"), SPARK) == number
    assert graph_sizes(whole, SPARK) < number
    plan = plan_of(device=SPARK)
    named = {one.name for one in MemoryPlan(plan.models, replace(plan.demand, graphs="NONE"), SPARK).overheads}
    assert "CUDA graphs" not in named


def test_the_cpu_takes_what_its_variable_says() -> None:
    assert plan_of("env.VLLM_CPU_KVCACHE_SPACE=3", device=CPU).available == 3 * GIB
    busy = replace(CPU, free=2 * GIB)
    (problem,) = plan_of("env.VLLM_CPU_KVCACHE_SPACE=3", "serve.max_model_len=128", device=busy).problems()
    assert problem.startswith("2.00 GiB of 24.00 GiB are free now, but vLLM requires 3.00 GiB (VLLM_CPU_KV")
