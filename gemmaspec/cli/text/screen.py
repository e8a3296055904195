"""Rich's console for text of any origin, and the readings of `top` on it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gemmaspec.cli import output
from gemmaspec.cli.output import visible
from gemmaspec.core.live.window import Board, document, gpu_line, rows
from gemmaspec.core.redact import redact


class Screen(Console):
    """A console that shows what a terminal would obey; only Rich's own segments control it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, their text visible."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


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
