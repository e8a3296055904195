"""How the last verdicts of `smoke` and `watch` read, in `status`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmaspec.deploy.kept.stacks import Last, Watching


def ago(moment: float | None) -> str:
    """Return how long ago something was, in the largest unit that says enough."""
    if moment is None:
        return "-"
    seconds = max(0, int(time.time() - moment))
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def lines(last: Last | None) -> Iterator[str]:
    """Return a line for each command that has a verdict."""
    if last and last.smoke:
        before = "" if last.smoke_is_of_this_start else ", before the last start"
        yield f"  smoke     {last.smoke.line()}, {ago(last.smoke.at)}{before}"
    if last and last.watch:
        yield f"  watch     {_watching(last.watch)}"
    if last and last.beside:
        yield f"  watch     in its container: {_watching(last.beside)}"
    if last and last.beside_log:
        yield f"  watch     in its container: does not run, or has written nothing; next: {' '.join(last.beside_log)}"


def _watching(watching: Watching) -> str:
    faults = ", ".join(f"{kind} since {ago(began)}" for kind, began in watching.active.items()) or "no fault"
    runs = f"looked {ago(watching.at)}" if watching.looks else f"ended; it looked last {ago(watching.at)}"
    done = f"; {watching.last}" if watching.last else ""
    missing = f"; not judged: {', '.join(watching.unknown)}" if watching.unknown else ""
    attested = f", {watching.attested}" if watching.attested else ""
    return f"{faults}, {runs}{attested}{done}{missing}"


def document(last: Last | None) -> dict[str, Any]:
    """Return the verdicts for machines."""
    smoke = last.smoke if last else None
    watch = last.watch if last else None
    beside = last.beside if last else None
    silent = {"watches": False, "log": list(last.beside_log)} if last and last.beside_log else None
    return {
        "smoke": {**vars(smoke), "verdict": smoke.line(), "of_this_start": last.smoke_is_of_this_start}
        if smoke and last
        else None,
        "watch": {**vars(watch), "watches": watch.looks} if watch else None,
        "watch_container": {**vars(beside), "watches": beside.looks} if beside else silent,
    }
