"""Restarts that a watch asks for: each in a process of its own, side by side where they share no GPU and no core.

    python -m gemmaspec.look.restarting NAME SINCE [no-spec] [no-speed]

A watch that ends, by Ctrl-C or by kill, does not end a restart that it has begun.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.look.memory import wait_released
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.ready.phases import Phase
from gemmaspec.serve.restart_judged import LeftAlone, restart_judged
from gemmaspec.serve.speedless import OFF

_NO_SPEC: Final = "no-spec"
_NO_SPEED: Final = "no-speed"


def restart_beside(judged: Started, *, no_spec: bool, no_speed: bool, note: Callable[[str], None]) -> None:
    """Restart a server in a process of its own, and wait for it. Raises LeftAlone, GemmaspecError as `restart_judged`.

    `note` gets each of its notes.
    """
    words = [judged.server.name, repr(judged.since)]
    words += [_NO_SPEC] if no_spec else []
    words += [_NO_SPEED] if no_speed else []
    child = subprocess.Popen(
        [sys.executable, "-m", "gemmaspec.look.restarting", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert child.stdout
    last: Mapping[str, Any] = {}
    with child:
        for line in child.stdout:
            last = json.loads(line)
            if "note" in last:
                note(str(last["note"]))
    _raise_for(judged.server.name, last, child.returncode)


def _raise_for(name: str, last: Mapping[str, Any], code: int) -> None:
    """Raise what a restart has ended with, if it did not succeed."""
    if last.get("ended") == "restarted":
        return
    if last.get("ended") == "left":
        raise LeftAlone(str(last["message"]))
    raise GemmaspecError(str(last.get("message") or f"the restart of {name} ended with exit code {code}"))


class _Said:
    """Progress that another process reads, if it still does."""

    def __init__(self) -> None:
        self._last = ""

    def note(self, text: str) -> None:
        """Pass on a sentence."""
        _say(note=text)

    def phase(self, phase: Phase, elapsed: float, left: float | None = None) -> None:
        """Pass on each phase once."""
        if str(phase) != self._last:
            self._last = str(phase)
            ahead = f", about {left:.0f} s more" if left else ""
            _say(note=f"{phase}, after {elapsed:.0f} s{ahead}")


def _say(**what: str) -> None:
    with contextlib.suppress(OSError):  # the watch has ended, and this goes on
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def main(words: Sequence[str]) -> None:
    """Restart a server, and say on standard output how that goes and how it ended."""
    name, since, *flags = words
    try:
        judged = dataclasses.replace(stacks.find(name), since=json.loads(since.replace("None", "null")))
        overrides = (OFF,) if _NO_SPEED in flags else ()
        restart_judged(judged, _Said(), overrides=overrides, no_spec=_NO_SPEC in flags, gate=wait_released)
    except LeftAlone as left:
        _say(ended="left", message=left.message)
    except GemmaspecError as error:
        _say(ended="failed", message=error.message)
    else:
        _say(ended="restarted")


if __name__ == "__main__":
    main(sys.argv[1:])
