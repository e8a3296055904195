"""Figures that others published, against what `fit` says of the same server: cache, loading and speed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from gemmaspec.checkpoint.published.shipped import PublishedCheckpoint, checkpoint_of, shipped_for
from gemmaspec.fit.flags import flags_of
from gemmaspec.fit.machine import GIB, Device, named
from gemmaspec.fit.plan import MemoryPlan, Models
from gemmaspec.fit.roofline import roofline
from gemmaspec.profile.load import load_profile
from gemmaspec.profile.machines import MACHINES

SPARK = named(MACHINES["dgx-spark"])
H100 = named(MACHINES["h100"])
A100 = named(MACHINES["a100"])
RTX_5090 = Device(name="NVIDIA GeForce RTX 5090", memory=33_661_911_040, bandwidth=1.792e12, capability="12.0")


def model(size: str, form: str = "BF16", **more: Any) -> PublishedCheckpoint:
    known = shipped_for(f"google/gemma-4-{size}-it")
    assert known
    return replace(known, form=form, **more)


def assistant(size: str) -> PublishedCheckpoint:
    known = shipped_for(f"google/gemma-4-{size}-it-assistant")
    assert known
    return known


def plan(
    target: PublishedCheckpoint, *sets: str, device: Device | None, vllm: str, draft: PublishedCheckpoint | None = None
) -> MemoryPlan:
    """The profile of a Spark's E2B with other models and flags."""
    assert device
    base = ("serve.kv_cache_dtype=", "serve.max_model_len=", "chat.tool_call_parser=", "target.quantization=")
    spec = ("draft.model=google/gemma-4-31B-it-assistant", "speculative.method=mtp") if draft else ()
    tokens = () if any("num_speculative_tokens" in one for one in sets) or not draft else (_K4,)
    loaded = load_profile("spark-e2b", overrides=(*base, *spec, *tokens, *sets)).profile
    one, other = checkpoint_of(target), checkpoint_of(draft) if draft else None
    return MemoryPlan(Models(target=one, draft=other), flags_of(loaded, one, other, vllm=vllm, device=device), device)


_K4 = "speculative.num_speculative_tokens=4"


def test_the_cache_of_an_e2b_on_a_spark_is_the_published_one() -> None:
    sets = ("serve.gpu_memory_utilization=0.6", "serve.max_model_len=131072", "serve.max_num_seqs=32")
    found = plan(model("E2B"), *sets, device=SPARK, vllm="0.27.1")
    assert found.flags.max_num_batched_tokens == 2048
    assert found.cache.logged_tokens(found.available, 131072) == pytest.approx(9_493_769, rel=0.03)


def test_the_cache_of_an_nvidia_31b_on_a_spark_is_the_published_one() -> None:
    """Release and share were not published; 0.22.1 and 0.9 are assumed."""
    sets = ("serve.gpu_memory_utilization=0.9", "serve.max_model_len=262144", "serve.kv_cache_dtype=fp8")
    known = shipped_for("nvidia/Gemma-4-31B-IT-NVFP4")
    assert known
    found = plan(known, *sets, device=SPARK, vllm="0.22.1")
    assert found.target.total / GIB == pytest.approx(31.18, rel=0.01)


def test_a_26b_on_an_a100_loads_and_leaves_what_was_published() -> None:
    sets = ("serve.gpu_memory_utilization=0.9", "serve.enforce_eager=true")
    found = plan(model("26B-A4B"), *sets, device=A100, vllm="0.19.0")
    assert (found.flags.max_num_batched_tokens, found.flags.max_num_seqs) == (2048, 256)
    assert found.target.total / GIB == pytest.approx(48.5, rel=0.005)
    assert found.available / GIB == pytest.approx(21.5, rel=0.04)  # 22.24 was computed for the small batch


@pytest.mark.parametrize(("form", "published"), [("NVFP4", 17.81)])
def test_packed_experts_take_more_under_marlin(form: str, published: float) -> None:
    """A published load of the 26B on a 24 GB card without FP4 cores."""
    ada = Device(name="NVIDIA GeForce RTX 4090", memory=24 * GIB, capability="8.9")
    found = plan(model("26B-A4B", form), device=ada, vllm="0.24.0")
    extra = next(one for one in found.overheads if one.name == "experts")
    assert extra.nbytes / GIB == pytest.approx(2.15, abs=0.05)
    assert (found.target.total + extra.nbytes) / GIB == pytest.approx(published, rel=0.02)
    native = plan(model("26B-A4B", form), device=RTX_5090, vllm="0.24.0")
    assert not [one for one in native.overheads if one.name == "experts"]


@dataclass(frozen=True)
class Published:
    """Tokens per second of one published server, of all its requests together."""

    tokens_per_second: float
    target: PublishedCheckpoint
    device: Device | None = SPARK
    draft: PublishedCheckpoint | None = None
    k: int = 4
    requests: int = 1
    outside: bool = False
    """Whether the estimate is known to miss it."""


ALONE = (
    Published(39.2, model("E2B")),
    Published(90, model("E2B", "NVFP4A16")),
    Published(49.9, model("E4B", "NVFP4A16")),
    Published(19.2, model("E4B")),
    Published(9.02, model("31B", "NVFP4", towers=False)),
    Published(7.0, model("31B", "NVFP4-mlp")),
    Published(3.7, model("31B")),
    Published(48, model("26B-A4B", "NVFP4")),
    Published(52, model("26B-A4B", "NVFP4")),
    Published(35, model("26B-A4B", "FP8")),
    Published(40.9, model("26B-A4B", "FP8")),
    Published(40.2, model("31B"), device=H100),
)
DRAFTED = (
    Published(52, model("31B", "NVFP4", towers=False), draft=assistant("31B"), k=7),
    Published(125, model("31B"), device=H100, draft=assistant("31B"), k=8),
    Published(55.6, model("26B-A4B", "NVFP4"), draft=assistant("26B-A4B"), k=4),
    Published(54.9, model("26B-A4B", "NVFP4"), draft=assistant("26B-A4B"), k=2),
    Published(304, model("26B-A4B", "NVFP4"), draft=assistant("26B-A4B"), k=2, requests=8),
    Published(210, model("26B-A4B", "NVFP4"), draft=assistant("26B-A4B"), k=4, requests=8),
    Published(108.8, model("26B-A4B", "FP8"), draft=assistant("26B-A4B"), k=4),
    Published(674, model("26B-A4B", "FP8"), draft=assistant("26B-A4B"), k=4, requests=8),
)


@pytest.mark.parametrize("one", [*ALONE, *DRAFTED], ids=lambda one: f"{one.tokens_per_second}")
def test_no_published_server_is_faster_than_the_bound(one: Published) -> None:
    tokens = (f"speculative.num_speculative_tokens={one.k}",) if one.draft else ()
    found = roofline(
        plan(one.target, *tokens, device=one.device, vllm="0.30.0", draft=one.draft), (), concurrency=one.requests
    )
    assert found
    assert one.tokens_per_second <= found.bound


@pytest.mark.parametrize("one", ALONE, ids=lambda one: f"{one.tokens_per_second}")
def test_published_servers_without_a_draft_are_within_the_estimate(one: Published) -> None:
    found = roofline(plan(one.target, device=one.device, vllm="0.30.0"), ())
    assert found
    assert found.estimate.low * 0.98 <= one.tokens_per_second <= found.estimate.high * 1.02
    assert found.estimate.high < found.alone


def test_what_the_experts_term_alone_would_have_forbidden_is_allowed() -> None:
    """674 tokens/s of a 26B in FP8 with eight requests: with experts chosen one by one the limit was 370."""
    found = roofline(
        plan(model("26B-A4B", "FP8"), _K4, device=SPARK, vllm="0.30.0", draft=assistant("26B-A4B")), (), concurrency=8
    )
    assert found
    independent = 5 * 8 * found.bandwidth / sum(found.verifying.reads(found.passes))
    assert independent < 674 < found.bound


def test_a_small_assistant_reads_a_few_rows_of_its_head() -> None:
    """2,048 centroids, of which 32 are looked into: a 64th of 134 MB."""
    found = plan(model("E4B"), device=SPARK, vllm="0.30.0", draft=assistant("E4B"))
    assert found.draft
    assert found.draft.embeddings == 262_144 * 256 * 2
    assert found.draft.read(1) < found.draft.decoder + found.draft.embeddings // 50
    big = plan(model("31B"), device=SPARK, vllm="0.30.0", draft=assistant("31B")).draft
    assert big
    assert big.read(1) == big.decoder + big.embeddings


def test_more_gpus_than_a_machine_has_do_not_fit() -> None:
    (problem,) = [
        one
        for one in plan(model("E2B"), "serve.tensor_parallel_size=2", device=SPARK, vllm="0.32.0").problems()
        if "GPU" in one
    ]
    assert problem.startswith("tensor_parallel_size 2 needs 2 GPUs, and dgx-spark has 1 GPU")


def test_two_machines_are_two() -> None:
    two = plan(
        model("E2B"), "serve.tensor_parallel_size=2", "serve.extra_args=[--nnodes, '2']", device=SPARK, vllm="0.32.0"
    )
    assert two.flags.nodes == 2
    assert not [one for one in two.problems() if "GPU" in one]
