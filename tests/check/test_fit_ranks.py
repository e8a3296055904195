"""What each GPU holds under tensor parallelism, against vLLM's own classes as rank 0 of so many GPUs.

The answers were computed apart from the table that ships: classes of vLLM 0.32.0 on torch's meta device, with the size
of the tensor parallel group set, parameters and buffers added up.
"""

from __future__ import annotations

import pytest

from gemmaspec.check.fit.memory_plan import MemoryPlan, Models
from gemmaspec.check.use_cases.server_facts import plan_on
from gemmaspec.core.checkpoint.published.shipped import checkpoint_of, shipped_for
from gemmaspec.core.checkpoint.ranks import is_asked, on_each
from gemmaspec.core.profile.load import load_profile

GIB = 2**30
PAIRS = {
    "31B + MTP": ("google/gemma-4-31B-it", "google/gemma-4-31B-it-assistant"),
    "31B NVFP4 + MTP": ("nvidia/Gemma-4-31B-IT-NVFP4", "google/gemma-4-31B-it-assistant"),
    "26B-A4B + MTP": ("google/gemma-4-26B-A4B-it", "google/gemma-4-26B-A4B-it-assistant"),
    "12B + MTP": ("google/gemma-4-12B-it", "google/gemma-4-12B-it-assistant"),
    "31B + E2B": ("google/gemma-4-31B-it", "google/gemma-4-E2B-it"),
    "26B-A4B + E2B": ("google/gemma-4-26B-A4B-it", "google/gemma-4-E2B-it"),
    "E2B": ("google/gemma-4-E2B-it", None),
    "12B": ("google/gemma-4-12B-it", None),
}
ANSWERS = {
    "31B + MTP": {1: 59.89, 2: 30.77, 4: 16.20, 8: 8.97},
    "31B NVFP4 + MTP": {1: 32.03, 2: 16.84, 4: 9.24, 8: 5.49},
    "26B-A4B + MTP": {1: 49.44, 2: 25.54, 4: 13.61, 8: 7.64},
    "12B + MTP": {1: 23.66, 2: 12.16, 4: 6.42, 8: 3.54},
    "31B + E2B": {1: 68.53, 2: 35.56, 4: 19.08},
    "26B-A4B + E2B": {1: 58.16, 2: 30.39, 4: 16.52},
    "E2B": {2: 5.42},
    "12B": {2: 11.58},
}
KNOWN = [(pair, gpus, gib) for pair, answers in ANSWERS.items() for gpus, gib in answers.items()]


def plan_of(pair: str, gpus: int) -> MemoryPlan:
    target, draft = PAIRS[pair]
    facts = [shipped_for(name) for name in (target, draft) if name]
    models = [checkpoint_of(fact) for fact in facts if fact]
    overrides = (f"serve.tensor_parallel_size={gpus}", "machine=8xh200", f"target.model={target}")
    profile = load_profile("nvidia-31b-mtp", overrides=(*overrides, "target.quantization=null")).profile
    some = plan_on(profile, "0.32.0", shapes=True)
    return MemoryPlan(Models(target=models[0], draft=models[1] if draft else None), some.demand, some.device)


@pytest.mark.parametrize(("pair", "gpus", "gib"), KNOWN)
def test_each_gpu_holds_what_vllm_builds_there(pair: str, gpus: int, gib: float) -> None:
    assert plan_of(pair, gpus).weights / GIB == pytest.approx(gib, abs=0.05)


def test_a_model_that_vllm_was_not_asked_about_keeps_towers_and_norms_whole() -> None:
    text = plan_of("31B + MTP", 1).models.target.text
    assert is_asked(text, 4)
    assert not is_asked(text, 3)
    assert (on_each(text, "towers", 3), on_each(text, "mlp", 3)) == (1, on_each(text, "queries", 3))
    assert on_each(text, "keys", 16) > on_each(text, "mlp", 16), "a GPU has no less than one head"


def test_twice_the_gpus_leave_more_than_half_of_the_weights_on_each() -> None:
    one, two = plan_of("31B + MTP", 1), plan_of("31B + MTP", 2)
    assert one.weights / 2 < two.weights < one.weights * 0.53
    assert two.target.towers == one.target.towers
    assert two.target.rotary == one.target.rotary
