"""Calls to several machines at once."""

from __future__ import annotations

import threading

import pytest

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine.together import together


def fail() -> int:
    raise EnvironmentMissing("away")


def test_all_are_asked_at_once_and_each_failure_is_kept() -> None:
    meet = threading.Barrier(3, timeout=60)  # passes only if all three run at the same time
    found = together({"a": meet.wait, "b": meet.wait, "c": meet.wait, "d": fail}, seconds=90)
    assert {found["a"], found["b"], found["c"]} == {0, 1, 2}
    assert isinstance(found["d"], EnvironmentMissing)


def test_one_that_does_not_answer_is_given_up() -> None:
    end = threading.Event()
    found = together({"a": lambda: 1, "b": lambda: end.wait(30)}, seconds=0.05)
    end.set()
    assert found["a"] == 1
    assert isinstance(found["b"], EnvironmentMissing)
    assert "no answer within" in found["b"].message


def test_a_bug_is_not_taken_for_an_answer() -> None:
    with pytest.raises(ZeroDivisionError):
        together({"a": lambda: 1 // 0}, seconds=60)
