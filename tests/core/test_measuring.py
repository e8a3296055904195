"""How many launches and values of a case a measurement on the spot takes, and what its clock says."""

from __future__ import annotations

import contextlib
import runpy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

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


class FakeCuda:
    """A FAKE of torch.cuda: a launch takes a fixed time, and a graph takes as long as the launches that it captured."""

    def __init__(self, alone_ms: float) -> None:
        self.alone_ms, self.now, self.captured = alone_ms, 0.0, 0
        self.capturing = False
        cuda = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                self.at = 0.0

            def record(self) -> None:
                assert not cuda.capturing, "an event in a graph has no time"
                self.at = cuda.now

            def elapsed_time(self, later: Any) -> float:
                return float(later.at - self.at)

        class Graph:
            def replay(self) -> None:
                cuda.now += cuda.captured * cuda.alone_ms

        self.Event, self.CUDAGraph = Event, Graph
        self.Stream = self.current_stream = lambda: SimpleNamespace(wait_stream=lambda _: None)
        self.stream, self.synchronize = contextlib.nullcontext, lambda: None

    @contextlib.contextmanager
    def graph(self, _: object) -> Iterator[None]:
        self.capturing, self.captured = True, 0
        yield
        self.capturing = False

    def launch(self) -> None:
        if self.capturing:
            self.captured += 1
        else:
            self.now += self.alone_ms


@pytest.mark.parametrize(("alone_ms", "in_all"), [(0.05, 3 + 20 * (1 + 5 * 3)), (262.0, 3 + 1 * (1 + 5 * 3))])
def test_the_clock_of_a_gpu_times_one_launch_and_long_ones_seldom(alone_ms: float, in_all: int) -> None:
    cuda = FakeCuda(alone_ms)
    clock = MEASURING["_gpu_clock"](SimpleNamespace(cuda=cuda), cuda.launch)
    assert [clock() for _ in range(3)] == pytest.approx([alone_ms] * 3)
    assert cuda.now == pytest.approx(in_all * alone_ms)
