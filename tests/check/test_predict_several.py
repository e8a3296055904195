"""`predict` on several GPUs of one machine: bytes of each and all-reduces, or no figure."""

from __future__ import annotations

import pytest

from gemmaspec.check.predict.several import between
from gemmaspec.check.use_cases.fit import FitRequest, fit
from gemmaspec.check.use_cases.predict import Prediction, PredictRequest, predict_profile

MEASURED = {(1, 256): 10.90, (8, 256): 15.17, (1, 8192): 13.49, (8, 8192): 19.68}
"""(requests, tokens) → milliseconds of a step on two H100s with NVLink, vLLM 0.32.0, nvidia-31b-mtp, k=4."""


def asked(machine: str, gpus: int, *, profile: str = "nvidia-31b-mtp", k: int = 4) -> Prediction:
    overrides = (f"serve.tensor_parallel_size={gpus}",)
    request = PredictRequest(
        profile=profile,
        overrides=overrides,
        machine=machine,
        ks=(k,),
        concurrencies=(1, 8),
        contexts=(256, 8192),
    )
    return predict_profile(request)


def test_two_h100s_take_the_measured_steps() -> None:
    """The all-reduce's time is of these cells; what one GPU takes is predicted from others."""
    answer = asked("2xh100", 2)
    steps = {(row.concurrency, row.context): row.step.seconds * 1e3 for row in answer.rows}
    assert steps == pytest.approx(MEASURED, rel=0.1)
    assert not any(row.measured for row in answer.rows)


def test_replicas_are_named_where_they_make_more() -> None:
    notes = asked("2xh100", 2).notes
    assert any("of 8 requests of 8,192 tokens" in note and "--set replicas=2" in note for note in notes)
    assert not any("of 1 requests" in note for note in notes)


@pytest.mark.parametrize(
    ("machine", "gpus"), [("2x5090", 2), ("8x5090", 8), ("2x3090", 2), ("8xb200", 8), ("4xh100", 4), ("2xa100", 2)]
)
def test_a_link_that_nobody_measured_has_no_figure(machine: str, gpus: int) -> None:
    answer = asked(machine, gpus)
    assert answer.basis == "bound"
    assert not answer.rows
    assert any("no measurement covers the link" in note for note in answer.notes)


def test_the_bound_is_of_the_bytes_of_each_gpu() -> None:
    def bound(gpus: int) -> float:
        estimate = fit(FitRequest(profile="nvidia-31b-mtp", machine="8xb200", overrides=overrides(gpus), context=16000))
        assert estimate.roofline
        return estimate.roofline.alone

    def overrides(gpus: int) -> tuple[str, ...]:
        return (f"serve.tensor_parallel_size={gpus}",)

    assert bound(2) < 2.2 * bound(1)
    assert bound(8) < 8.8 * bound(1)


def test_figures_of_one_gpu_are_not_shown_for_two() -> None:
    one = fit(FitRequest(profile="nvidia-31b-mtp", machine="h100"))
    two = fit(FitRequest(profile="nvidia-31b-mtp", machine="h100", overrides=("serve.tensor_parallel_size=2",)))
    assert one.measured
    assert not two.measured


def test_only_what_was_measured_is_known() -> None:
    assert between("hopper", 2)
    assert between("hopper", 8) is None
    assert between(None, 2) is None
