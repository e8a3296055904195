"""`gemmaspec top`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from gemmaspec.cli import options, output
from gemmaspec.core.errors import UsageError

if TYPE_CHECKING:
    from gemmaspec.look.top_page import Top


def top(
    names: options.Stacks = None,
    once: Annotated[bool, options.option("--once")] = False,
    interval: Annotated[float, options.option("--interval", min=0.2, max=60)] = 1.0,
    web: Annotated[bool, options.option("--web")] = False,
    port: Annotated[int, options.option("--port", min=0, max=65535)] = 0,
    json: options.Json = False,
) -> None:
    """Show how servers draft, second by second.

    Each cell reads "last 5 seconds (last 10 minutes)". Latencies are the median, the 90th and the 99th percentile.
    With --json, prints one JSON document per reading. With --once, exit code 1 if no server answers.
    """
    from gemmaspec.cli.text import top as text
    from gemmaspec.look.top_page import Top

    if web and (once or json):
        raise UsageError("--web cannot be used with --once or --json", hint="gemmaspec top --web")
    watched = Top(names or ())
    if web:
        _serve(watched, port=port, interval=interval)
        return
    if once:
        watched.look()
        time.sleep(interval)
        board = watched.look()
        text.once(board, as_json=json)
        raise typer.Exit(1 if board.views and all(view.problem for view in board.views) else 0)
    if json or not text.is_terminal():
        while True:
            text.once(watched.look(), as_json=json)
            time.sleep(interval)
    text.live(watched.look, interval=interval)


def _serve(watched: Top, *, port: int, interval: float) -> None:
    from gemmaspec.look.top_page import serve

    with serve(watched, port=port, interval=interval) as address:
        output.data(address)
        output.progress("Press Ctrl-C to stop.")
        while True:
            time.sleep(3600)
