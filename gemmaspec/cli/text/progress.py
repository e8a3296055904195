"""The progress of a start: phases on a terminal, or plain lines where there is none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmaspec.cli import output
from gemmaspec.core.redact import redact

if TYPE_CHECKING:
    from gemmaspec.run.kept.stack_lock import StartProgress
    from gemmaspec.run.ready.phases import Phase


class PlainProgress:
    """Prints a line for every step, for logs, pipes and CI."""

    def note(self, text: str) -> None:
        output.progress(text)

    def phase(self, phase: Phase, elapsed: float, left: float | None = None) -> None:
        output.progress(f"{elapsed:7.1f} s  {_entered(phase, left)}")


class TerminalProgress:
    """Shows one live line with a clock, and leaves a line for every finished phase."""

    def __init__(self) -> None:
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        from gemmaspec.cli.text.screen import Screen

        self._console = Screen(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._bar = Bar(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> TerminalProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def note(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that is closed meanwhile ends no start
            self._console.print(output.fitted(redact(text), output.width_of(sys.stderr)), markup=False, soft_wrap=True)

    def phase(self, phase: Phase, elapsed: float, left: float | None = None) -> None:
        with contextlib.suppress(OSError):
            self._console.print(f"{elapsed:7.1f} s  {_entered(phase, left)}", markup=False)
            self._bar.update(self._task, description=str(phase))


def _entered(phase: Phase, left: float | None) -> str:
    """Return a phase, with what is left if an earlier start shows it."""
    from gemmaspec.core.sentences import duration

    if left and left >= 1:
        return f"{phase}, about {duration(left)} left"
    return str(phase)


@contextlib.contextmanager
def start_progress() -> Iterator[StartProgress]:
    """Yield progress on stderr: live on a terminal, plain lines elsewhere."""
    if sys.stderr.isatty():
        with TerminalProgress() as progress:
            yield progress
    else:
        yield PlainProgress()
