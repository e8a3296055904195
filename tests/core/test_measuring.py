"""How many launches and values of a case a measurement on the spot takes."""

from __future__ import annotations

import runpy

import pytest

from gemmaspec.core import data

MEASURING = runpy.run_path(str(data.PROBES / "measuring.py"), run_name="measuring")
MOST = MEASURING["MOST_VALUES"]


@pytest.mark.parametrize(("alone_ms", "launches"), [(0.0, 20), (0.05, 20), (16.4, 3), (49.0, 1), (262.0, 1)])
def test_a_long_launch_is_timed_alone_and_short_ones_together(alone_ms: float, launches: int) -> None:
    assert MEASURING["in_a_timing"](alone_ms) == launches


@pytest.mark.parametrize("tokens", [5, 1024, 2048])
def test_of_many_values_some_of_every_token_and_head_are_compared(tokens: int) -> None:
    heads, size = 32, 512
    every = MEASURING["apart"](tokens * heads * size)
    compared = range(0, tokens * heads * size, every)
    assert len(compared) * 4 <= MEASURING["MOST_BYTES"]
    assert {place // size for place in compared} == set(range(tokens * heads))
    assert {place % size for place in compared} == set(range(size))


def test_few_values_are_all_compared() -> None:
    assert [MEASURING["apart"](count) for count in (1, MOST, MOST + 1, 8 * MOST)] == [1, 1, 3, 9]
