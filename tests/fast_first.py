"""A pytest plugin for `make test`: what starts no server and asks no index runs first, so that it fails first."""

from __future__ import annotations

import pytest

SLOW = ("network", "real_process", "real_docker")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by the slowest marker a test has; within one, the order stays."""
    items.sort(
        key=lambda item: max((1 + SLOW.index(name) for name in SLOW if item.get_closest_marker(name)), default=0)
    )
