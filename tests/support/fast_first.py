"""A pytest plugin for `make test`: what starts no server and asks no index runs first, so that it fails first.

Beside the order it makes the groups that pytest-xdist hands out whole (`--dist loadgroup --no-loadscope-reorder`):
the tests of a file that start the same kind of server share that server, so they stay with one worker, in their order.
A test with a group of its own makes one of both names.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

SLOW = ("network", "real_process", "real_docker")
LONGEST = (
    "test_servers",  # two starts of vLLM in a row on each engine, and what its watch does under load
    "test_bench_vllm",
    "test_tune_real",
    "test_speed_real",
    "test_bench_dummy",
    "test_pinning_real",
    "test_draft_ids_real",
    "test_qat_real",
    "test_fuzz_attention",
    "test_fleet_real",
)
"""Files whose servers or kernels take minutes, by their longest group. They run before the other slow ones, so that no worker is
alone with one at last."""
SHORTEST = ("test_proof_real", "test_judged")
"""Files in which each patch is a group of its own, of seconds. They run last, so that all workers end together."""


@pytest.hookimpl(wrapper=True)  # before the hook of pytest-xdist, which reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark the groups, and sort by `place`; within one, the order stays."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}-{slowness(item)}"))
    yield
    items.sort(key=place)


def place(item: pytest.Item) -> tuple[bool, int, int]:
    """Return what tests are sorted by: fast ones, the longest groups, others by the slowest marker, the shortest groups."""
    kind, file = slowness(item), item.path.stem
    if not kind:
        return False, 0, 0
    if file in SHORTEST:
        return True, len(LONGEST) + 1 + SHORTEST.index(file), kind
    rank = LONGEST.index(file) if file in LONGEST else len(LONGEST)
    return True, rank, kind


def slowness(item: pytest.Item) -> int:
    """Return the place of a test's slowest marker in SLOW, from 1; 0 for a test with none."""
    return max((1 + SLOW.index(name) for name in SLOW if item.get_closest_marker(name)), default=0)
