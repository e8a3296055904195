"""How fast it can be: the formulas, and a floor that was measured elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.check.fit.roofline import acceptance_of, roofline, step_bytes, tokens_per_step
from gemmaspec.check.fit.weights import weights_of
from gemmaspec.core.profile.device import Device
from tests.check.test_fit_plan import H200, plan_of
from tests.support import shapes
from tests.support.checkpoints import checkpoint


@pytest.mark.parametrize(("a", "k", "expected"), [(0.0, 4, 1.0), (1.0, 4, 5.0), (0.5, 1, 1.5), (0.7, 4, 2.7731)])
def test_expected_tokens_of_a_step(a: float, k: int, expected: float) -> None:
    assert tokens_per_step(a, k) == pytest.approx(expected, abs=1e-4)


@given(a=st.floats(0, 0.99), k=st.integers(1, 16))
def test_an_acceptance_length_is_turned_back_into_an_acceptance(a: float, k: int) -> None:
    assert acceptance_of(tokens_per_step(a, k), k) == pytest.approx(a, abs=1e-6)


def test_a_31b_in_nvfp4_reads_what_was_read_on_an_h200() -> None:
    """There: 19 to 20.5 GB a step, a floor of 4.6 ms at the 4.3 TB/s that copying reaches, 215 tokens/s."""
    assert H200
    device = Device(name="h200", memory=H200.memory, bandwidth=4.3e12, capability="9.0")
    plan = plan_of("serve.kv_cache_dtype=bfloat16", device=device, vllm="0.26.0")
    step = step_bytes(plan, context=512, concurrency=1, tokens=1)
    assert 19e9 < step.alone < 20.5e9
    found = roofline(plan, context=512)
    assert found
    assert found.concurrency * found.bandwidth / found.step.alone == pytest.approx(215, rel=0.03)
    assert found.alone == pytest.approx(215, rel=0.03)


def test_an_assistant_with_centroids_reads_a_part_of_its_output_head() -> None:
    config = shapes.assistant_config("E2B")
    tensors = shapes.assistant_tensors(config)
    few = weights_of(checkpoint(config, tensors), vllm="0.32.0", towers=())
    whole = weights_of(checkpoint(config | {"use_ordered_embeddings": False}, tensors), vllm="0.32.0", towers=())
    assert few.total == whole.total
    assert whole.read(1) - few.read(1) == whole.embeddings * (1 - 4096 / 262_144)
    assert few.read(64) == whole.read(64)


def test_the_bound_holds_with_every_token_accepted_and_takes_caches_of_the_gpu_off() -> None:
    found = roofline(plan_of())
    assert found
    assert found.bound > 5 * 273e9 / sum(found.verifying.reads(4))
    assert found.alone > 273e9 / found.step.alone


def test_a_server_without_a_draft_has_no_passes_and_one_without_a_bandwidth_no_bound() -> None:
    alone = roofline(plan_of(no_spec=True))
    assert alone
    assert alone.passes == 0
    assert alone.bound == alone.alone
    assert roofline(plan_of(device=Device(name="x", memory=10**11))) is None


@given(context=st.integers(1, 100_000), more=st.integers(1, 8))
def test_more_context_and_more_requests_read_more(context: int, more: int) -> None:
    plan = plan_of()
    small = step_bytes(plan, context=context, concurrency=1, tokens=1)
    assert step_bytes(plan, context=context + more, concurrency=1, tokens=1).alone >= small.alone
    assert step_bytes(plan, context=context, concurrency=1 + more, tokens=1).alone > small.alone


def test_a_window_bounds_what_a_sliding_layer_reads() -> None:
    plan = plan_of(no_spec=True)
    at, beyond = (step_bytes(plan, context=length, concurrency=1, tokens=1) for length in (1024, 2048))
    full = 2 * 4 * 512 * 10  # bytes a token of the ten full layers, in FP8
    assert beyond.target_cache - at.target_cache == 1024 * full
