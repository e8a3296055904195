"""`gemmaspec explain`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from gemmaspec.cli import options
from gemmaspec.cli.text import page
from gemmaspec.core.errors import UsageError

if TYPE_CHECKING:
    from gemmaspec.look.explain import Explained
    from gemmaspec.look.explain_log import LogExplained
    from gemmaspec.run.ready.raises import RaisedAt

_MOST: Final = 64 * 1024 * 1024
"""Bytes of a log to read, the last ones."""
_NAMES: Final = 8
"""Letters of the column of names."""
_PLACES: Final = 3
"""Places of one text to print."""


def explain(
    words: Annotated[list[str] | None, options.argument("[CODE]")] = None,
    log: Annotated[str | None, options.option("--log", of="explain")] = None,
    json: options.Json = False,
) -> None:
    """Explain a code, a word, an error's text or a whole log; without one, list what can be asked."""
    from gemmaspec.look import explain as use_case

    if log is not None:
        if words:
            raise UsageError("--log explains a whole log; a code or a text is asked alone")
        _tell_log(_read(log), as_json=json)
        return
    if not words:
        listed = use_case.names()
        lines = (f"{kind + ':':<38}{', '.join(names)}" for kind, names in listed.items())
        page.answer({"names": listed}, lines, as_json=json)
        return
    asked = " ".join(words)
    try:
        entries = use_case.explain(asked)
    except UsageError:
        if not use_case.is_a_text(asked):
            raise
        _tell_log(asked.splitlines(), as_json=json)
        return
    page.answer({"explained": entries}, _entry_lines(entries), as_json=json)


def _entry_lines(entries: Sequence[Explained]) -> Iterator[str]:
    for entry in entries:
        yield f"{entry.name}, {entry.kind}"
        for line in entry.text.splitlines():
            yield f"  {line}" if line else ""


def _read(name: str) -> list[str]:
    """Return the lines of a log's end; `-` is stdin. Raises UsageError for what cannot be read."""
    if name == "-":
        return sys.stdin.buffer.read(_MOST).decode("utf-8", "replace").splitlines()
    file = Path(name).expanduser()
    if not file.is_file():
        raise UsageError(f"--log: {name} is not a file", hint="gemmaspec explain --log FILE    # or - for stdin")
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _MOST))
        return opened.read(_MOST).decode("utf-8", "replace").splitlines()


def _tell_log(lines: list[str], *, as_json: bool) -> None:
    from gemmaspec.look.explain_log import explain_log

    found = explain_log(lines)
    page.answer({"log": found}, _page(found), as_json=as_json)


def _page(found: LogExplained) -> Iterator[str]:
    if found.code:
        yield f"{found.code}, failure of a start"
        yield f"  {found.message}"
        yield f"  {found.fix}"
    else:
        yield "not in the table of failures; its first error is"
    yield from page.rows_below(_rows(found), names=_NAMES)


def _rows(found: LogExplained) -> Iterator[page.Row]:
    for line in found.shown:
        yield "log", line
    for place in found.raised[:_PLACES]:
        yield "raised", _place(place)
    if len(found.raised) > _PLACES:
        yield "", f"and in {len(found.raised) - _PLACES} other places"
    yield "vLLM", found.vllm


def _place(place: RaisedAt) -> str:
    function = f", in {place.function}" if place.function else ""
    if place.condition:
        condition = f", if {place.condition}"
    else:
        condition = ""
    return f"vllm/{place.file}{function}{condition} ({place.releases})"
