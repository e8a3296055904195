"""`gemmaspec pull`, `gemmaspec lock` and `gemmaspec rollback`."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from gemmaspec.cli import options, output
from gemmaspec.cli.target import carry_out
from gemmaspec.core.errors import UsageError
from gemmaspec.core.redact import redact
from gemmaspec.core.sentences import readable_size

if TYPE_CHECKING:
    from gemmaspec.serve.knowngood import KnownGood
    from gemmaspec.serve.pull import PullPart, PullProgress


def lock(profile: options.Profile, engine: options.Engine = None, json: options.Json = False) -> None:
    """Record exactly what a profile runs: image digest, model revisions, versions, plan.

    Writes NAME.lock next to the profile, or into your own profile folder for a shipped profile. `up --locked` then
    refuses to run anything else.
    """
    from gemmaspec.serve.lock import lock_profile

    written = lock_profile(profile, options.engine_name(engine), output.progress)
    if json:
        content = written.lock.model_dump(by_alias=True)
        output.json_data({"ok": True, "file": str(written.file), "lock": content, "moved": written.moved})
        return
    for change in written.moved:
        output.data(str(change))
    state = "locked" if written.first else "locked again" if written.moved else "already locked; nothing has changed"
    output.data(f"{written.lock.profile} is {state}: {written.file}")
    output.data(f"  engine    {written.lock.engine}")
    if written.lock.image:
        output.data(f"  image     {written.lock.image.ref}")
    versions = written.lock.versions
    output.data(f"  versions  vllm {versions.vllm}, torch {versions.torch}, transformers {versions.transformers}")


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
    if json:
        output.json_data({"ok": True, "parts": parts})
        return
    for part in parts:
        output.data(f"{part.role:<8} {_fetched(part):<12} {part.name}{f' at {part.revision}' if part.revision else ''}")


def _fetched(part: PullPart) -> str:
    if part.to_fetch == 0:
        return "cached"
    return f"{readable_size(part.to_fetch)} new" if part.to_fetch else "new"


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
            tenth = 10 * self._done[role] // total if total else 0
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


def rollback(
    name: options.OptionalStack = None,
    to: Annotated[str | None, options.option("--stack", autocompletion=options.complete_good)] = None,
    list_: Annotated[bool, options.option("--list", of="pull")] = False,
    timeout: options.Timeout = 1800,
    json: options.Json = False,
) -> None:
    """Go back to the last stack that became ready before the current one.

    Starts it with the same files, the same image by digest and the same model revisions. Needs no network if the
    image and models are on this machine. Does not change the profile: the next `up` renders it again.

    With the NAME of a profile that has replicas, goes back to what the last change replaced, one replica at a time.
    """
    from gemmaspec.run.kept.groups import is_group
    from gemmaspec.serve import replicas
    from gemmaspec.serve import up as use_case
    from gemmaspec.serve.knowngood import known_goods

    if list_:
        chosen = name or use_case.only_name()
        _list(list(known_goods(chosen)), use_case.current(chosen), as_json=json)
        return
    if name and is_group(name):
        if to:
            hint = f"gemmaspec rollback {name}-1 --stack {to}"
            raise UsageError("--stack is for one server; name a replica", hint=hint)
        carry_out(name, partial(replicas.rollback, name, timeout_s=timeout), as_json=json)
        return
    name = name or use_case.only_name()
    carry_out(name, partial(use_case.rollback, name, to=to, timeout_s=timeout), as_json=json)


def _list(goods: list[KnownGood], current: str | None, *, as_json: bool) -> None:
    if as_json:
        rows = [{"id": good.id, "current": good.key == current, "facts": dict(good.facts.facts())} for good in goods]
        output.json_data({"known_good": rows})
        return
    if not goods:
        output.progress("no known good stack has that name")
        return
    from gemmaspec.cli.text import table

    columns = (
        table.Column(""), table.Column("ID"), table.Column("ENGINE", 2), table.Column("VLLM"), table.Column("PORT", 1),
        table.Column("OPTIONS AND IMAGE", 3, wraps=True),
    )  # fmt: skip
    table.show(columns, [_row(good, current) for good in goods])


def _row(good: KnownGood, current: str | None) -> tuple[str, ...]:
    started = good.started
    words = [f"--set {override}" for override in started.overrides]
    words += [word for word, given in (("--no-spec", started.no_spec), ("--locked", started.locked)) if given]
    image = [good.facts.image.name] if good.facts.image else []
    mark = "*" if good.key == current else " "
    options_ = " ".join([*words, *image])
    return mark, good.id, started.engine, good.facts.versions.vllm, str(started.server.port), options_
