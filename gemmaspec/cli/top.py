"""`gemmaspec top`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from gemmaspec.cli import options, output
from gemmaspec.errors import UsageError

if TYPE_CHECKING:
    from gemmaspec.deploy.views.top import Top


def top(
    names: options.Stacks = None,
    once: Annotated[bool, typer.Option("--once", help="Print one reading and exit.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.2, max=60, help="Time between two readings.")
    ] = 1.0,
    web: Annotated[bool, typer.Option("--web", help="Serve the readings as a web page on 127.0.0.1.")] = False,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port of the page; 0 picks a free one.")
    ] = 0,
    json: options.Json = False,
) -> None:
    """Show how servers draft, second by second.

    Each cell reads "last 5 seconds (last 10 minutes)". Latencies are the median, the 90th and the 99th percentile.
    With --json, prints one JSON document per reading. With --once, exit code 1 if no server answers.
    """
    from gemmaspec.cli.text import top as text
    from gemmaspec.deploy.views.top import Top

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
        raise typer.Exit(1 if board.views and all(one.problem for one in board.views) else 0)
    if json or not text.is_terminal():
        while True:
            text.once(watched.look(), as_json=json)
            time.sleep(interval)
    text.live(watched.look, interval=interval)


def _serve(watched: Top, *, port: int, interval: float) -> None:
    from gemmaspec.deploy.views.top_page import serve

    with serve(watched, port=port, interval=interval) as address:
        output.data(address)
        output.progress("Press Ctrl-C to stop.")
        while True:
            time.sleep(3600)
