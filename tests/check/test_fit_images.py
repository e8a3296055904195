"""What images add to a start: the tower's peak, a batch for a whole video, and embeddings outside of what is compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmaspec.check.fit.advice import advice
from gemmaspec.check.fit.memory_plan import HELD, MemoryPlan
from gemmaspec.check.fit.overhead import Overhead
from gemmaspec.check.fit.weights import weights_of
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.profile.device import GIB, Device
from gemmaspec.core.releases.items import largest_item
from tests.check.test_fit_plan import CPU, H200, SPARK, plan_of
from tests.support.fit_shapes import checkpoint

SEES, BLIND = checkpoint("31B", nvfp4=True), checkpoint("31B", nvfp4=True, towers=False)
SHORT = "serve.max_num_batched_tokens=2048"


def estimate(plan: MemoryPlan, name: str) -> Overhead:
    return next(one for one in plan.overheads if one.name == name)


@pytest.mark.parametrize(
    ("vllm", "spec", "said"),
    [
        ("0.21.0", True, "3 videos, 1 of 96 concurrent frames x 630 patches x 208,640 bytes"),
        ("0.22.0", True, "3 videos, 72 of 96 concurrent frames x 630 patches x 208,640 bytes"),
        ("0.26.0", False, None),
        ("0.27.0", False, "3 videos, 72 of 96 concurrent frames x 630 patches x 208,640 bytes"),
        ("0.29.0", True, "3 videos, 72 of 96 concurrent frames x 630 patches x 35,040 bytes"),
    ],
)
def test_the_tower_takes_what_the_release_passes_through_it(vllm: str, spec: bool, said: str | None) -> None:
    plan = plan_of(vllm=vllm, target=SEES, device=H200, no_spec=not spec)
    blind = plan_of(vllm=vllm, target=BLIND, device=H200, no_spec=not spec)
    tower = replace(plan, demand=replace(plan.demand, eager=True))
    text = estimate(blind, "activations")
    if said and "1 of" not in said:
        assert said in estimate(tower, "activations").formula
        assert estimate(tower, "activations").nbytes > text.nbytes
    else:
        assert estimate(tower, "activations") == text


def test_a_smaller_machine_passes_fewer_frames_at_once() -> None:
    small = Device(name="small", memory=24 * GIB, capability="8.9")
    sets = ("serve.max_num_batched_tokens=8192",)
    assert (
        "12 of 96 concurrent frames"
        in estimate(plan_of(*sets, vllm="0.26.0", target=SEES, device=small), "activations").formula
    )


def test_without_videos_images_are_passed() -> None:
    plan = plan_of("serve.limit_mm_per_prompt={video: 0, image: 2}", vllm="0.26.0", target=SEES, device=H200)
    assert "2 images, 2 of 2 concurrent frames x 2520 patches" in _formula(plan)


def _formula(plan: MemoryPlan) -> str:
    from gemmaspec.check.fit.images import encoding

    found = encoding(plan.models.target, plan.demand, plan.device)
    assert found
    return found[1]


def test_what_the_config_says_of_the_tower_counts() -> None:
    vision = {"vision_config": {"hidden_size": 768, "intermediate_size": 3072, "position_embedding_size": 1024}}
    told = replace(SEES, config={**SEES.config, **vision})
    assert "96 of 96 concurrent frames x 630 patches x 23,552 bytes" in _formula(
        plan_of(vllm="0.26.0", target=told, device=H200)
    )
    assert "x 24,576 bytes" in _formula(plan_of(vllm="0.29.0", target=told, device=H200))


@pytest.mark.parametrize(("target", "copies"), [(SEES, False), (BLIND, True)])
def test_the_embeddings_of_a_target_that_sees_are_not_compiled(target: Checkpoint, copies: bool) -> None:
    plan = plan_of(vllm="0.26.0", target=target, device=H200, no_spec=True)
    assert (estimate(plan, "compiling").nbytes > 0) is copies


def test_compiling_counts_for_what_it_takes_beyond_the_peak() -> None:
    """The draft's embeddings are compiled with images on as well; at 8,192 tokens three videos take more."""
    few, many = (
        plan_of(f"serve.max_num_batched_tokens={batch}", vllm="0.26.0", target=SEES, device=H200)
        for batch in (2496, 8192)
    )
    together = estimate(few, "activations").nbytes + estimate(few, "compiling").nbytes
    assert estimate(few, "compiling").nbytes > 0
    assert together > 4480 * 2**20
    assert estimate(many, "compiling").nbytes == 0


def test_a_batch_that_cannot_hold_a_video_does_not_start() -> None:
    plan = plan_of(SHORT, vllm="0.26.0", target=SEES)
    assert plan.problems() == [
        "one video takes 2,496 tokens, but a batch of 2,048 cannot hold it: the start fails with "
        '"Chunked MM input disabled"'
    ]
    starting = {one.change for one in advice(plan) if one.starts}
    assert starting == {"--set serve.max_num_batched_tokens=2496", "--set serve.language_model_only=true"}


@pytest.mark.parametrize(
    ("sets", "vllm", "device", "target"),
    [
        (("serve.max_num_batched_tokens=2496",), "0.26.0", SPARK, SEES),
        ((SHORT,), "0.19.1", SPARK, SEES),
        ((SHORT,), "0.26.0", SPARK, BLIND),
        ((SHORT, "serve.language_model_only=true"), "0.26.0", SPARK, SEES),
        ((SHORT, "serve.limit_mm_per_prompt={video: 0}"), "0.26.0", SPARK, SEES),
        ((SHORT, "env.VLLM_CPU_KVCACHE_SPACE=18"), "0.26.0", CPU, SEES),
        ((SHORT, "target.model=google/gemma-4-E4B-it"), "0.26.0", SPARK, checkpoint("E4B")),
    ],
)
def test_a_batch_that_need_not_hold_a_video(
    sets: tuple[str, ...], vllm: str, device: Device, target: Checkpoint
) -> None:
    assert not [one for one in plan_of(*sets, vllm=vllm, device=device, target=target).problems() if "video" in one]


def test_no_advice_makes_the_batch_too_small() -> None:
    for one in advice(plan_of("serve.max_num_batched_tokens=8192", vllm="0.26.0", target=SEES)):
        assert "max_num_batched_tokens=2048" not in one.change


def test_nothing_is_the_largest_where_nothing_may_come() -> None:
    assert largest_item({"image": 0, "video": 0}) is None


def test_a_start_dies_where_loading_takes_more_than_is_free() -> None:
    """On a Spark that other programs fill up, a small share can be free and loading take more for a moment."""
    plan = plan_of("serve.gpu_memory_utilization=0.205")
    assert SPARK
    busy = replace(plan, device=replace(SPARK, free=plan.requested))
    assert plan.weights < plan.requested < plan.loading
    assert f"loading takes {plan.loading / GIB:.2f} GiB, but the machine has" in busy.problems()[0]
    assert not [one for one in plan.problems() if one.startswith("loading")]


def test_beside_a_small_draft_the_targets_own_embeddings_are_the_peak() -> None:
    head = replace(checkpoint("E2B", towers=False), tensors=())
    plan = plan_of()
    small = replace(plan, models=replace(plan.models, draft=head))
    alone = weights_of(plan.models.target, vllm="0.32.0", towers=())
    assert small.loading == alone.total + alone.embeddings
    assert small.held == small.weights + HELD
