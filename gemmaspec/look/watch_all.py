"""`watch` over several servers: each is looked at by a thread of its own, so that none waits for another."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from gemmaspec.look.hooks import tried
from gemmaspec.look.places import Places, used_by
from gemmaspec.look.router_watch import WatchedRouter, look_at_router
from gemmaspec.look.sidecar.rounds import WatchLine, go_round
from gemmaspec.look.watch import Restart, Watched, look
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.machine import nvidia

_LAST_WORDS_S: Final = 3.0
"""Seconds that looks, and then events, may still take when `watch` ends."""


@dataclass
class _Shared:
    """What the threads share."""

    interval: float
    tell: Callable[[WatchLine], None]
    power_w: float | None = None
    raised: queue.SimpleQueue[BaseException] = field(default_factory=queue.SimpleQueue)
    places: Places = field(default_factory=Places)
    printing: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)
    """The watch ends, and so do its threads."""

    def say(self, line: WatchLine) -> None:
        with self.printing:
            self.tell(line)


def watch_all(
    watches: Sequence[Watched],
    *,
    routers: Sequence[WatchedRouter] = (),
    interval: float,
    restart: Restart,
    tell: Callable[[WatchLine], None],
) -> None:
    """Look at every server and router until Ctrl-C, and restart those that a look asks for.

    Servers on different GPUs are restarted side by side, those that share one after another. `interval` is in
    seconds. What a thread cannot handle is raised here.
    """
    shared = _Shared(interval, tell, nvidia.power())
    in_turn = partial(_restarted, shared=shared, restart=restart)
    looks = [(watch.started.server.name, partial(_look_at_server, watch, shared, in_turn)) for watch in watches]
    looks += [(router.name, partial(look_at_router, router, interval=interval)) for router in routers]
    threads = []
    for name, look_once in looks:
        thread = threading.Thread(target=partial(_go_round, look_once, shared), name=name, daemon=True)
        threads.append(thread)
        thread.start()
    try:
        while True:
            shared.power_w = nvidia.power()
            with contextlib.suppress(queue.Empty):
                raise shared.raised.get(timeout=shared.interval)
    finally:
        shared.over.set()
        until = time.monotonic() + _LAST_WORDS_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        for tellers in (*(watch.tellers for watch in watches), *(router.tellers for router in routers)):
            tellers.finish(_LAST_WORDS_S)


def _restarted(judged: Started, *, no_spec: bool, no_speed: bool, shared: _Shared, restart: Restart) -> None:
    """Restart a server once no other restart uses its GPUs or cores. Raises GemmaspecError as that does."""
    with shared.places.taken(used_by(judged)):
        restart(judged, no_spec=no_spec, no_speed=no_speed)


def _look_at_server(watch: Watched, shared: _Shared, restart: Restart) -> Iterator[WatchLine]:
    return look(watch, power_w=shared.power_w, restart=restart, interval=shared.interval)


def _go_round(look_once: Callable[[], Iterator[WatchLine]], shared: _Shared) -> None:
    try:
        go_round(look_once, shared.say, interval_s=shared.interval, over=shared.over)
    except BaseException as error:
        shared.raised.put(error)


def test_event(watches: Sequence[Watched]) -> list[tuple[str, str]]:
    """Tell the receivers of each stack that they are tested, and return what went wrong, by the stack's name.

    A stack that tells nobody is named too.
    """
    wrong = []
    for watch in watches:
        name, to = watch.started.server.name, watch.tellers
        event = {"stack": name, "kind": "test", "begins": True, "reason": "gemmaspec watch --test-webhook"}
        if not (to.command or to.url):
            wrong.append((name, "neither watch.hook nor watch.webhook is set, and GEMMASPEC_WEBHOOK is not exported"))
        wrong += [(name, problem) for problem in tried(to.command, to.url, event)]
    return wrong


def unit(executable: Path, names: Sequence[str]) -> str:
    """Return a systemd user unit that keeps `watch` running."""
    command = " ".join(_quoted(word) for word in (str(executable), "watch", *names))
    return f"""\
[Unit]
Description=gemmaspec watch {" ".join(names)}
After=network.target

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=10
KillMode=process
NoNewPrivileges=true
PrivateTmp=false

[Install]
WantedBy=default.target
"""


def _quoted(word: str) -> str:
    """Quote a word for ExecStart: systemd expands % and $ inside quotes too."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
