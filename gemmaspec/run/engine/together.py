"""Ask several machines at the same time, each within a bounded time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError

T = TypeVar("T")

_INTERRUPTED_S: Final = 30.0
"""Seconds to wait for calls under way after Ctrl-C, so that none acts after what undoes it."""


def together(calls: Mapping[str, Callable[[], T]], *, seconds: float | None) -> dict[str, T | GemmaspecError]:
    """Return what each call returned or raised, by its name; all are made at the same time, in threads.

    A call that has not returned after `seconds` is abandoned and counts as EnvironmentMissing. None: every call is
    bounded by itself. Raise what a call raises besides GemmaspecError.
    """
    done: dict[str, T | BaseException] = {}

    def run(name: str, call: Callable[[], T]) -> None:
        try:
            done[name] = call()
        except BaseException as error:  # handed to the caller's thread, which raises it
            done[name] = error

    threads = {
        name: threading.Thread(target=run, args=(name, call), name=f"gemmaspec-{name}", daemon=True)
        for name, call in calls.items()
    }
    for thread in threads.values():
        thread.start()
    try:
        _join(threads.values(), seconds)
    except BaseException:
        _join(threads.values(), _INTERRUPTED_S)
        raise
    return {name: _result(name, done, seconds) for name in calls}


def _join(threads: Iterable[threading.Thread], seconds: float | None) -> None:
    if seconds is None:
        deadline = None
    else:
        deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))


def _result(name: str, done: Mapping[str, T | BaseException], seconds: float | None) -> T | GemmaspecError:
    if name not in done:
        return EnvironmentMissing(f"no answer within {seconds:.0f} s", hint="docker info")
    outcome = done[name]
    if isinstance(outcome, BaseException) and not isinstance(outcome, GemmaspecError):
        raise outcome
    return outcome
