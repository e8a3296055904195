"""`gemmaspec pull`."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from gemmaspec.cli import options, output
from gemmaspec.cli.text import page
from gemmaspec.core.redact import redact
from gemmaspec.core.sentences import readable_size

if TYPE_CHECKING:
    from gemmaspec.serve.pull import PullPart, PullProgress


def pull(
    profile: options.Profile,
    engine: options.Engine = None,
    latest: Annotated[bool, options.option("--latest")] = False,
    set_: options.Set = None,
    json: options.Json = False,
) -> None:
    """Fetch image, target and draft together, so that `up` needs no network.

    Fetches the revisions of the profile's lock, if it has one. The next run continues an interrupted download.
    """
    from gemmaspec.serve.pull import pull as use_case

    with _progress() as progress:
        parts = use_case(
            profile, engine=options.engine_name(engine), latest=latest, overrides=set_ or (), progress=progress
        )
    page.answer({"ok": True, "parts": parts}, map(_line, parts), as_json=json)


def _line(part: PullPart) -> str:
    return f"{part.role:<8} {_fetched(part):<12} {part.name}{f' at {part.revision}' if part.revision else ''}"


def _fetched(part: PullPart) -> str:
    if part.to_fetch == 0:
        return "cached"
    if part.to_fetch:
        return f"{readable_size(part.to_fetch)} new"
    return "new"


@contextlib.contextmanager
def _progress() -> Iterator[PullProgress]:
    """Return the progress: bars on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():
        yield _Plain()
        return
    with _Bars() as bars:
        yield bars


class _Plain:
    """A line for each part's beginning and end, and for every tenth of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total: dict[str, int | None] = {}
        self._done: dict[str, int] = {}

    def note(self, text: str) -> None:
        output.progress(text)

    def begin(self, role: str, name: str, total: int | None) -> None:
        self._total[role], self._done[role] = total, 0
        output.progress(f"{role}: fetching {name}, {readable_size(total) if total is not None else 'size unknown'}")

    def advance(self, role: str, count: int) -> None:
        with self._lock:
            before, total = self._done[role], self._total[role]
            self._done[role] += count
            if total:
                tenth = 10 * self._done[role] // total
            else:
                tenth = 0
            if total and 10 * before // total < tenth < 10:
                output.progress(f"{role}: {10 * tenth} %")

    def end(self, role: str) -> None:
        output.progress(f"{role}: here")


class _Bars:
    """A bar for each part."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bars

        from gemmaspec.cli.text.screen import Screen

        self._console = Screen(stderr=True)
        name = TextColumn("{task.description}", markup=False)
        columns = (name, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bars = Bars(*columns, console=self._console, transient=True)
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> _Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def note(self, text: str) -> None:
        self._console.print(redact(text), markup=False)

    def begin(self, role: str, name: str, total: int | None) -> None:
        self._tasks[role] = self._bars.add_task(f"{role} {name}", total=total)

    def advance(self, role: str, count: int) -> None:
        self._bars.advance(self._tasks[role], count)

    def end(self, role: str) -> None:
        self._console.print(f"{role}: here", markup=False)
        self._bars.remove_task(self._tasks[role])
