"""Print the readings of `top`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gemmaspec.cli import output
from gemmaspec.cli.text.screen import Screen
from gemmaspec.core.live.board import Board, document, gpu_line, rows
from gemmaspec.core.redact import redact


def is_terminal() -> bool:
    """Return whether there is a screen that can be redrawn."""
    return sys.stdout.isatty()


def once(board: Board, *, as_json: bool) -> None:
    """Print one reading."""
    if as_json:
        output.json_data(document(board))
        return
    console = Screen(file=sys.stdout, soft_wrap=False)
    console.print(picture(board))


def live(look: Callable[[], Board], *, interval: float) -> None:
    """Redraw the reading until Ctrl-C."""
    console = Screen()
    with Live(picture(look()), console=console, screen=True, auto_refresh=False) as screen:
        while True:
            screen.update(picture(look()), refresh=True)
            time.sleep(interval)


def picture(board: Board) -> RenderableType:
    """Return a reading as a table with a column for each stack, and a line for each GPU."""
    if not board.views:
        return Text("No stack was started on this machine.\n  try: gemmaspec profile list")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for view in board.views:
        table.add_column(Text(view.name), overflow="fold")
    for label, cells in rows(board.views):
        table.add_row(Text(label), *(Text(redact(cell)) for cell in cells))
    lines: list[RenderableType] = [table]
    lines += [Text(gpu_line(gpu)) for gpu in board.gpus]
    if board.memory_available is not None:
        lines.append(Text(f"memory available  {board.memory_available / 1e9:.1f} GB"))
    return Group(*lines)
