"""`gemmaspec demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmaspec.cli import options


def demo(
    engine: options.Engine = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running.")] = False,
    json: options.Json = False,
) -> None:
    """Make a tiny Gemma 4 pair on this machine and serve it, with and without speculation."""
    from gemmaspec.cli.text import stack
    from gemmaspec.deploy.start import demo as use_case

    with stack.start_progress() as progress:
        result = use_case.demo(engine=options.engine_name(engine), keep=keep, progress=progress)
    stack.demo(result, as_json=json)
