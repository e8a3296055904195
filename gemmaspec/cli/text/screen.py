"""Rich's console for text of any origin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from gemmaspec.cli.output import visible


class Screen(Console):
    """A console that shows what a terminal would obey; only Rich's own segments control it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, their text visible."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
