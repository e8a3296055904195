"""Figures that others published, against what `fit` says of the same server: cache, loading and speed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from published import record

from gemmaspec.check.fit.demand import demand_of
from gemmaspec.check.fit.link import link_of
from gemmaspec.check.fit.memory_plan import MemoryPlan, Models
from gemmaspec.check.fit.roofline import ServingRoofline, roofline, step_bytes, weights_format
from gemmaspec.check.predict import efficiency
from gemmaspec.check.predict.predict import QUANTILE
from gemmaspec.check.predict.steps import NOISE
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.published.shipped import checkpoint_from, checkpoint_of, shipped_for
from gemmaspec.core.patching.evidence import family_of
from gemmaspec.core.profile.device import GIB, Device, named
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.resolved.resolve import resolved_of

SPARK = named(MACHINES["dgx-spark"])
H100 = named(MACHINES["h100"])
H200 = named(MACHINES["h200"])
PRO_6000 = named(MACHINES["rtx-pro-6000"])
A100 = named(MACHINES["a100"])
RTX_5090 = Device(name="NVIDIA GeForce RTX 5090", memory=33_661_911_040, bandwidth=1.792e12, capability="12.0")


@functools.cache
def model(size: str, form: str = "BF16", **more: Any) -> Checkpoint:
    """A checkpoint of a size as somebody might store it."""
    known = shipped_for(f"google/gemma-4-{size}-it")
    assert known
    config, tensors = record.built({"kind": "model", "size": size, "form": form, **more})
    return checkpoint_from(known, config, record.rows(tensors))


@functools.cache
def assistant(size: str) -> Checkpoint:
    known = shipped_for(f"google/gemma-4-{size}-it-assistant")
    assert known
    return checkpoint_of(known)


def plan(
    target: Checkpoint, *sets: str, device: Device | None, vllm: str, draft: Checkpoint | None = None
) -> MemoryPlan:
    """The profile of a Spark's E2B with other models and flags."""
    assert device
    base = ("serve.kv_cache_dtype=", "serve.max_model_len=", "chat.tool_call_parser=", "target.quantization=")
    spec = ("draft.model=google/gemma-4-31B-it-assistant", "speculative.method=mtp") if draft else ()
    tokens = () if any("num_speculative_tokens" in one for one in sets) or not draft else (_K4,)
    loaded = load_profile("spark-e2b", overrides=(*base, *spec, *tokens, *sets)).profile
    resolved = resolved_of(loaded, vllm=vllm, device=device, target=target, draft=draft)
    return MemoryPlan(Models(target=target, draft=draft), demand_of(resolved), device)


_K4 = "speculative.num_speculative_tokens=4"


Made = Callable[[], Checkpoint]
"""Makes a checkpoint where a test needs it: whoever collects the tests needs none."""


@dataclass(frozen=True, kw_only=True)
class Cache:
    """What one published server said of its KV cache."""

    source: str
    """Who published it, and what was not and is inferred."""
    tokens: int | None = None
    """"GPU KV cache size" of its log."""
    gib: float | None = None
    """"Available KV cache memory" of its log."""
    within: float = 0.03
    target: Made
    draft: Made | None = None
    sets: tuple[str, ...]
    device: Device | None
    vllm: str
    loading: float | None = None
    """GiB of weights as its log has them, where the shapes that ship are of another mix."""
    available: float | None = None
    """GiB for the cache as its log has them, where only the tokens are to be compared."""

    def __str__(self) -> str:
        return self.source.partition(":")[0]


@functools.cache
def nvidia_31b() -> Checkpoint:
    known = shipped_for("nvidia/Gemma-4-31B-IT-NVFP4")
    assert known
    return checkpoint_of(known)


_SHARE_90 = "serve.gpu_memory_utilization=0.9"
_CARD = {"target": partial(model, "26B-A4B", "NVFP4"), "device": RTX_5090, "vllm": "0.19.0", "loading": 17.2}
CACHES = (
    Cache(
        source="inference-atlas #14: E2B on a Spark",
        tokens=9_493_769,
        target=partial(model, "E2B"),
        sets=("serve.gpu_memory_utilization=0.6", "serve.max_model_len=131072", "serve.max_num_seqs=32"),
        device=SPARK,
        vllm="0.27.1",
    ),
    Cache(
        source="myoceane.fr 10289: 26B-A4B on an A100",
        gib=21.5,
        target=partial(model, "26B-A4B"),
        sets=(_SHARE_90, "serve.max_model_len=131072", "serve.enforce_eager=true"),
        device=A100,
        vllm="0.19.0",
    ),
    Cache(
        source="robotmunki: NVIDIA's 31B on a Spark; release and share inferred, 0.85 is the most that starts there",
        tokens=1_563_739,
        target=nvidia_31b,
        sets=("serve.gpu_memory_utilization=0.85", "serve.max_model_len=262144", "serve.kv_cache_dtype=fp8"),
        device=SPARK,
        vllm="0.22.1",
    ),
    Cache(
        source="FusenAI card, BF16 cache: 26B-A4B on an RTX 5090, attention in BF16",
        tokens=43_000,
        sets=(_SHARE_90, "serve.max_model_len=4096"),
        **_CARD,  # type: ignore[arg-type]
    ),
    Cache(
        source="FusenAI card, FP8 cache: the same",
        tokens=87_000,
        sets=(_SHARE_90, "serve.max_model_len=4096", "serve.kv_cache_dtype=fp8"),
        **_CARD,  # type: ignore[arg-type]
    ),
    Cache(
        source="vllm #43308, 0.20.0: 31B in 4 bits on an A100",
        tokens=55_000,
        target=partial(model, "31B", "NVFP4A16"),
        sets=(_SHARE_90, "serve.max_model_len=32768"),
        device=A100,
        vllm="0.20.0",
    ),
    Cache(
        source="vllm #41789: 26B-A4B in FP8 with its assistant; the batch is inferred",
        tokens=193_624,
        within=0.001,
        target=partial(model, "26B-A4B", "FP8"),
        draft=partial(assistant, "26B-A4B"),
        sets=(
            "serve.max_model_len=32768",
            "serve.kv_cache_dtype=fp8",
            "serve.max_num_batched_tokens=16384",
            "speculative.num_speculative_tokens=1",
        ),
        device=A100,
        vllm="0.21.0",
        available=11.67,
    ),
)


@pytest.mark.parametrize("one", CACHES, ids=str)
def test_published_caches_are_within_three_percent(one: Cache) -> None:
    found = plan(one.target(), *one.sets, device=one.device, vllm=one.vllm, draft=one.draft and one.draft())
    more = found.target.total - one.loading * GIB if one.loading else 0
    available = one.available * GIB if one.available else found.available + more
    if one.gib:
        assert available / GIB == pytest.approx(one.gib, rel=one.within)
    if one.tokens:
        length = found.demand.max_model_len
        assert found.cache.logged_tokens(round(available), length) == pytest.approx(one.tokens, rel=one.within)


def test_a_published_cache_whose_batch_is_not_known_is_between_two() -> None:
    """vllm #43308, 0.21.0: about 525,000 tokens, between the batches of a small and of a large machine."""
    tokens = []
    for batch in (2496, 8192):
        sets = (_SHARE_90, "serve.max_model_len=262144", f"serve.max_num_batched_tokens={batch}")
        found = plan(model("31B", "NVFP4A16"), *sets, device=A100, vllm="0.21.0")
        tokens.append(found.cache.logged_tokens(found.available, 262144))
    assert tokens[0] > 525_000 > tokens[1]


@pytest.mark.parametrize(
    ("known", "device", "vllm", "published"),
    [(nvidia_31b, SPARK, "0.22.1", 31.18), (partial(model, "26B-A4B"), A100, "0.19.0", 48.5)],
)
def test_published_loads_are_within_one_percent(
    known: Made, device: Device | None, vllm: str, published: float
) -> None:
    assert plan(known(), device=device, vllm=vllm).target.total / GIB == pytest.approx(published, rel=0.01)


def test_an_a100_takes_the_small_batch() -> None:
    found = plan(model("26B-A4B"), device=A100, vllm="0.19.0").demand
    assert (found.max_num_batched_tokens, found.max_num_seqs) == (2048, 256)


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
    target: Made
    device: Device | None = SPARK
    draft: Made | None = None
    k: int = 4
    requests: int = 1
    outside: bool = False
    """Whether the estimate is known to miss it."""


ALONE = (
    Published(39.2, partial(model, "E2B")),
    Published(90, partial(model, "E2B", "NVFP4A16")),
    Published(49.9, partial(model, "E4B", "NVFP4A16")),
    Published(19.2, partial(model, "E4B")),
    Published(9.02, partial(model, "31B", "NVFP4", towers=False)),
    Published(7.0, partial(model, "31B", "NVFP4-mlp")),
    Published(3.7, partial(model, "31B")),
    Published(48, partial(model, "26B-A4B", "NVFP4")),
    Published(52, partial(model, "26B-A4B", "NVFP4")),
    Published(35, partial(model, "26B-A4B", "FP8")),
    Published(40.9, partial(model, "26B-A4B", "FP8")),
    Published(11.0, partial(model, "31B", "NVFP4", towers=False)),
    Published(40.2, partial(model, "31B"), device=H100),
    Published(68.7, partial(model, "31B", "FP8"), device=H100),
    Published(85.0, partial(model, "31B", "FP8"), device=H200),
    Published(56.3, partial(model, "31B", "NVFP4", towers=False), device=PRO_6000),
    Published(221, partial(model, "26B-A4B", "NVFP4"), device=PRO_6000),
    Published(114, partial(model, "12B", "NVFP4"), device=PRO_6000),
)
DRAFTED = (
    Published(52, partial(model, "31B", "NVFP4", towers=False), draft=partial(assistant, "31B"), k=7),
    Published(125, partial(model, "31B"), device=H100, draft=partial(assistant, "31B"), k=8),
    Published(55.6, partial(model, "26B-A4B", "NVFP4"), draft=partial(assistant, "26B-A4B"), k=4),
    Published(54.9, partial(model, "26B-A4B", "NVFP4"), draft=partial(assistant, "26B-A4B"), k=2),
    Published(304, partial(model, "26B-A4B", "NVFP4"), draft=partial(assistant, "26B-A4B"), k=2, requests=8),
    Published(210, partial(model, "26B-A4B", "NVFP4"), draft=partial(assistant, "26B-A4B"), k=4, requests=8),
    Published(108.8, partial(model, "26B-A4B", "FP8"), draft=partial(assistant, "26B-A4B"), k=4),
    Published(674, partial(model, "26B-A4B", "FP8"), draft=partial(assistant, "26B-A4B"), k=4, requests=8),
)


@pytest.mark.parametrize("one", [*ALONE, *DRAFTED], ids=lambda one: f"{one.tokens_per_second}")
def test_no_published_server_is_faster_than_the_bound(one: Published) -> None:
    tokens = (f"speculative.num_speculative_tokens={one.k}",) if one.draft else ()
    found = roofline(
        plan(one.target(), *tokens, device=one.device, vllm="0.30.0", draft=one.draft and one.draft()),
        concurrency=one.requests,
    )
    assert found
    assert one.tokens_per_second <= found.bound


@pytest.mark.parametrize("one", ALONE, ids=lambda one: f"{one.tokens_per_second}")
def test_published_servers_without_a_draft_are_within_the_prediction(one: Published) -> None:
    """And the share in measurements/efficiency.jsonl is the one that the published figure amounts to."""
    found = plan(one.target(), device=one.device, vllm="0.30.0")
    assert one.device
    assert one.device.bandwidth
    nbytes = step_bytes(found, context=1024, concurrency=1, tokens=1).alone
    reached = one.tokens_per_second * nbytes / one.device.bandwidth
    family = family_of(one.device.capability)
    assert any(
        (served.family, served.tokens_per_second) == (family, one.tokens_per_second)
        and served.share == pytest.approx(reached, rel=0.01)
        for served in efficiency.served()
    )
    law = efficiency.law_of(family, weights_format(found.models.target, fp8=False))
    computed = law.seconds(nbytes, one.device.bandwidth)
    assert abs(math.log(computed * one.tokens_per_second)) < QUANTILE * math.hypot(law.deviation, NOISE)
    assert law.deviation <= 0.2
    assert 1 / computed < roofline_of(found).alone


def roofline_of(found: MemoryPlan) -> ServingRoofline:
    bound = roofline(found)
    assert bound
    return bound


def test_what_the_experts_term_alone_would_have_forbidden_is_allowed() -> None:
    """674 tokens/s of a 26B in FP8 with eight requests: with experts chosen one by one the limit was 370."""
    found = roofline(
        plan(model("26B-A4B", "FP8"), _K4, device=SPARK, vllm="0.30.0", draft=assistant("26B-A4B")), concurrency=8
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
    assert two.demand.nodes == 2
    assert not [one for one in two.problems() if "GPU" in one]
    assert plan(model("E2B"), "nodes=2", device=SPARK, vllm="0.32.0").demand == two.demand


def test_what_a_step_sends_between_two_machines_is_two_sums_in_each_layer() -> None:
    two = plan(model("E2B"), "nodes=2", device=SPARK, vllm="0.32.0")
    target, link = two.models.target, link_of(two, concurrency=3)
    assert link is not None
    assert (link.nodes, link.gpus_per_node) == (2, 1)
    assert link.sums == 2 * len(target.text.layers)
    # hidden_size activations of two bytes for three tokens; of two machines each sends its half and the other's sum
    assert link.sent == link.sums * target.text.hidden_size * 3 * 2
    assert link.sending == link.sent / 25e9
    assert link_of(plan(model("E2B"), device=SPARK, vllm="0.32.0")) is None
