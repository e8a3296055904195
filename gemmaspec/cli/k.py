"""`gemmaspec k`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from gemmaspec.cli import options, output


def k(
    name: options.Stack,
    wish: Annotated[
        str | None,
        typer.Argument(
            metavar="[K]",
            help="Tokens to draft before each step: a number, off (0) or auto (as it was started).",
            autocompletion=lambda: ["auto", "off"],
            show_default=False,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show how many tokens a running profile drafts before each step, or change it without a restart.

    The profile must have `speculative.live_k: true`. No request is lost. The command returns once the server has
    confirmed. The next start begins with the profile's own k again.
    """
    from gemmaspec.cli.text import k as text
    from gemmaspec.deploy import live_k as use_case

    if wish is None:
        found = use_case.show(name)
        if json:
            output.json_data({"name": name, **dataclasses.asdict(found)})
        else:
            output.told(f"{name}: k is {text.sentence(found)}")
        return
    done = use_case.change(name, wish, output.progress)
    if json:
        seconds = round(done.seconds, 3)
        output.json_data({"name": name, **dataclasses.asdict(done.now), "before": done.before, "seconds": seconds})
    else:
        output.progress(f"{name}: k was {done.before}; confirmed after {done.seconds:.2f} s")
        output.told(f"{name}: k is {text.sentence(done.now)}")
