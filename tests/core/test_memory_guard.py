"""When the guard of unified memory ends a server, from texts of /proc as kernels write them."""

from __future__ import annotations

import pytest

from gemmaspec.core.live.memory_guard import Memory, danger, memory_of

MEMINFO = """\
MemTotal:       24684092 kB
MemFree:        13136612 kB
MemAvailable:   23439804 kB
Buffers:          178560 kB
"""
PRESSURE = """\
some avg10=0.00 avg60=0.00 avg300=0.00 total=679
full avg10=0.00 avg60=0.00 avg300=0.00 total=558
"""
"""Both of Linux 6 on a machine of 24 GB."""
GIB = 1024**3


def test_a_reading_is_what_the_kernel_says() -> None:
    read = memory_of(MEMINFO, PRESSURE)
    assert read == Memory(total=24684092 * 1024, available=23439804 * 1024, stalled=0.0)
    assert read
    assert danger([read, read]) == ""
    without = memory_of(MEMINFO, "")
    assert without
    assert without.stalled is None, "a kernel without pressure stall information"
    stalls = memory_of(MEMINFO, PRESSURE.replace("full avg10=0.00", "full avg10=41.27"))
    assert stalls
    assert stalls.stalled == 41.27


@pytest.mark.parametrize(
    "text", ["", "MemTotal: x kB\n", "MemTotal:       24684092 kB\n", "MemTotal: 0 kB\nMemAvailable: 0 kB\n"]
)
def test_what_the_kernel_does_not_say_ends_nothing(text: str) -> None:
    assert memory_of(text, PRESSURE) is None
    assert danger([]) == ""


def reading(available_gib: float, stalled: float | None = 0.0) -> Memory:
    return Memory(total=119 * GIB, available=int(available_gib * GIB), stalled=stalled)


@pytest.mark.parametrize(
    ("readings", "ends"),
    [
        ([reading(12)] * 2, False),
        ([reading(3)] * 2, False),
        ([reading(2)], False),
        ([reading(12), reading(2)], False),
        ([reading(2), reading(12)], False),
        ([reading(2)] * 2, True),
        ([reading(2, None)] * 2, True),
        ([reading(5, 9.9)], False),
        ([reading(5, 10.0)], True),
        ([reading(12, 80.0)] * 2, False),
        ([reading(5, None)] * 2, False),
    ],
)
def test_a_server_is_ended_where_memory_is_nearly_gone_or_all_wait_for_it(readings: list[Memory], ends: bool) -> None:
    """A load that reads files fills the page cache, which counts as available: that ends nothing."""
    assert bool(danger(readings)) == ends
