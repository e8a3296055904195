"""How fast it can be: the formulas, and a floor that was measured elsewhere."""

from __future__ import annotations

import pytest
from gemmaspec.fit.ceiling import acceptance_of, ceiling, step_bytes, tokens_per_step
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.fit.machine import Device
from gemmaspec.profile.model import Measured
from tests.test_fit_plan import H200, plan_of

ONE = Measured(acceptance_length=3.4, machine="dgx-spark", date="not given", source="somewhere")


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
    found = ceiling(plan, (), context=512)
    assert found
    assert found.alone == pytest.approx(215, rel=0.03)


def test_the_speed_is_bandwidth_over_bytes() -> None:
    plan = plan_of()
    found = ceiling(plan, ())
    assert found
    step = found.step
    assert found.alone == pytest.approx(273e9 / (step.target + step.target_cache))
    half = found.speeds[0]
    expected = tokens_per_step(0.5, 4) / (4 * step.cost + 1)
    assert (half.acceptance, half.speedup, half.basis) == (0.5, pytest.approx(expected), "assumed")
    assert half.tokens_per_second == pytest.approx(found.alone * half.speedup)


def test_a_measured_length_is_used_instead_of_assumed_ones() -> None:
    found = ceiling(plan_of(), (ONE,))
    assert found
    assert len(found.speeds) == 1
    assert found.speeds[0].tokens_per_step == pytest.approx(3.4)
    assert found.speeds[0].basis == "measured length 3.4, somewhere"


def test_nothing_is_said_without_speculation_or_bandwidth() -> None:
    alone = ceiling(plan_of(no_spec=True), ())
    assert alone
    assert alone.speeds == ()
    assert alone.passes == 0
    assert ceiling(plan_of(device=Device(name="x", memory=10**11)), ()) is None


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
