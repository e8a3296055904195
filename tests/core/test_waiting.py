"""What a command says while somebody answers slowly, and when it stops asking."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gemmaspec.core import waiting
from gemmaspec.core.waiting import TooSlow, Waits
from tests.support.docker_support import wait_for


def listening(said: list[str], *, first_s: float = 0.2) -> Waits:
    waits = Waits(first_s=first_s)
    waits.say = said.append
    return waits


def test_a_long_wait_is_named() -> None:
    said: list[str] = []
    waits = listening(said)
    with waits.on("the daemon"):
        wait_for(lambda: said)
    assert said[0].startswith("waiting for the daemon (")


def test_a_short_wait_is_not_named() -> None:
    said: list[str] = []
    waits = listening(said, first_s=waiting.SAID_AFTER_S)
    with waits.on("the daemon"):
        pass
    assert said == []


def test_many_short_answers_in_a_row_are_one_wait() -> None:
    said: list[str] = []
    waits = listening(said)
    until = time.monotonic() + 60
    while not said and time.monotonic() < until:
        with waits.on("the daemon"):
            time.sleep(0.03)
    assert said


def test_the_lines_come_less_and_less_often() -> None:
    said: list[str] = []
    waits = listening(said)
    began = time.monotonic()
    with waits.on("the daemon"):
        wait_for(lambda: len(said) == 3)
    assert time.monotonic() - began >= 0.2 + 0.4 + 0.8


def test_nobody_is_asked_any_more_once_the_time_is_over() -> None:
    waits = Waits()
    with waits.at_most(600), waits.on("the daemon"):
        pass
    over = "the daemon answers so slowly that not all was asked within -1 s"
    with waits.at_most(-1), pytest.raises(TooSlow, match=over):
        waits.on("the daemon").__enter__()
    with waits.on("the daemon"):
        pass


def test_the_threads_of_a_command_share_its_time() -> None:
    waits = Waits()

    def ask() -> None:
        waits.on("the daemon").__enter__()

    with waits.at_most(-1), ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask) for _ in range(3)]
        assert all(isinstance(one.exception(), TooSlow) for one in asked)


def test_a_command_that_nobody_reads_says_nothing() -> None:
    waits = Waits()
    with waits.on("the daemon"):
        assert waits._teller is None
