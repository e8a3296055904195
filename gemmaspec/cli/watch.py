"""`gemmaspec watch`."""

from __future__ import annotations

import dataclasses
import json as json_
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gemmaspec.cli import options, output
from gemmaspec.core.errors import GemmaspecError, UsageError
from gemmaspec.core.redact import redact

if TYPE_CHECKING:
    from gemmaspec.look.sidecar.rounds import WatchLine
    from gemmaspec.look.watch import Watched
    from gemmaspec.run.kept.stacks import Started


def watch(
    names: options.Stacks = None,
    interval: Annotated[float, options.option("--interval", min=0.2, max=10, hidden=True)] = 1.0,
    window: Annotated[float | None, options.option("--window", min=1, max=600, hidden=True)] = None,
    hang: Annotated[float | None, options.option("--hang", min=1, max=3600, hidden=True)] = None,
    systemd: Annotated[bool, options.option("--systemd")] = False,
    test_webhook: Annotated[bool, options.option("--test-webhook")] = False,
    json: options.Json = False,
) -> None:
    """Watch servers for faults.

    Reports a draft whose tokens are no longer accepted or that is cut off after its window, speculation that costs
    more than it gives, an engine that hangs while /health is green, a server that has exited, and a restart loop.
    What else it does is the profile's `watch:`; by default nothing. Ctrl-C ends it and leaves the servers running.

    With `watch.container: true` in its profile a stack brings a small watch of its own. That one reports and posts to
    the webhook, and cannot restart the server or run a hook.
    """
    from gemmaspec.look import watch as use_case
    from gemmaspec.look import watch_all

    if systemd:
        output.data(watch_all.unit(Path(shutil.which("gemmaspec") or sys.argv[0]).absolute(), names or ()))
        return
    from gemmaspec.look.router_watch import watched_routers

    watches = use_case.watched(names or (), window_s=window, hang_s=hang)
    routers = watched_routers(names or ())
    if not watches:
        raise UsageError("no profile was started on this machine", hint="gemmaspec up")
    if test_webhook:
        _test(watches)
        return

    def tell(line: WatchLine) -> None:
        use_case.log(line, redact=redact)
        _tell(line, as_json=json)

    subjects = [watch.started.server.name for watch in watches] + [f"{one.name} (router)" for one in routers]
    output.progress(f"Watching {', '.join(subjects)}. Press Ctrl-C to stop.")
    watch_all.watch_all(watches, routers=routers, interval=interval, restart=_restart, tell=tell)


def _test(watcheds: Sequence[Watched]) -> None:
    """Send a test event. Raises GemmaspecError if it does not arrive everywhere."""
    from gemmaspec.look.watch_all import test_event

    if wrong := test_event(watcheds):
        raise GemmaspecError("; ".join(f"{name}: {problem}" for name, problem in wrong), hint="gemmaspec watch --help")
    output.told(f"told: {', '.join(watch.started.server.name for watch in watcheds)}")


def _restart(judged: Started, *, no_spec: bool, no_speed: bool) -> None:
    from gemmaspec.look.restarting import restart_beside

    def note(text: str) -> None:
        output.progress(f"{judged.server.name}: {text}")

    restart_beside(judged, no_spec=no_spec, no_speed=no_speed, note=note)


def _tell(line: WatchLine, *, as_json: bool) -> None:
    if as_json:
        output.data(json_.dumps({"schema": 1, **dataclasses.asdict(line)}))
        return
    subject = " ".join(word for word in (line.stack, line.fault or "", line.what) if word)
    output.data(f"{line.at}  {subject}{': ' + line.reason if line.reason else ''}")
