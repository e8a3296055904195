"""What a command does with its target, one server or the replicas of a profile: progress, Ctrl-C and the result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

from gemmaspec.cli import output
from gemmaspec.core.errors import Interrupted

if TYPE_CHECKING:
    from gemmaspec.run.kept.stack_lock import StartProgress
    from gemmaspec.serve.roll import Rolled
    from gemmaspec.serve.starting import Running


@contextlib.contextmanager
def told_on_interrupt(name: str) -> Iterator[None]:
    """Turn Ctrl-C in the body into Interrupted, which says what keeps running, or where to see it."""
    try:
        yield
    except KeyboardInterrupt:
        from gemmaspec.look.after_interrupt import after_interrupt

        raise Interrupted(after_interrupt(name, output.progress)) from None


def carry_out(
    name: str, verb: Callable[[StartProgress], Running | Rolled], *, as_json: bool, verdicts: bool = False
) -> None:
    """Show a command's progress and the servers that run afterwards; with `verdicts`, their last verdicts too.

    Exits with 5 for a server that answers and drafts without CUDA graphs, more slowly than without a draft.
    """
    from gemmaspec.cli.text import progress as progress_of
    from gemmaspec.cli.text import replicas as replicas_text
    from gemmaspec.cli.text import stack as text
    from gemmaspec.run.kept.stacks import engine_of
    from gemmaspec.run.kept.verdicts import last_verdicts
    from gemmaspec.serve.starting import Running

    with told_on_interrupt(name), progress_of.start_progress() as progress:
        result = verb(progress)
    if isinstance(result, Running):
        if verdicts:
            last = last_verdicts(result.started, engine_of(result.started))
        else:
            last = None
        if not text.running(result, as_json=as_json, last=last):
            raise typer.Exit(5)
    else:
        replicas_text.rolled(result, as_json=as_json)
