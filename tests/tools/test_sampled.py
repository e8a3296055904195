"""How samples of a server's answers are held against each other; tests/real/test_servers.py does it to a real one."""

from __future__ import annotations

from collections import Counter

from tests.support.sampled import FALSE_ALARMS, same


def test_two_samples_are_told_apart() -> None:
    even, odd = Counter({"a": 75, "b": 75}), Counter({"a": 110, "b": 40})
    assert same(even, even) > 0.5
    assert same(even, Counter({"a": 80, "b": 70})) > 0.1
    assert same(even, odd) < FALSE_ALARMS
