"""`gemmaspec wait`."""

from __future__ import annotations

import typer

from gemmaspec.cli import options
from gemmaspec.cli.interrupt import told_on_interrupt


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("wait")(wait)


def wait(name: options.Stack, timeout: options.Timeout = 1800, json: options.Json = False) -> None:
    """Wait until a started profile has drafted, verified and answered, whoever started it.

    Exit code 0 if it has, 6 if it does not run or its start failed, 7 if it takes too long. Stops nothing.
    """
    from gemmaspec.cli.text import stack
    from gemmaspec.deploy import stacks
    from gemmaspec.deploy import wait as use_case
    from gemmaspec.deploy.verdicts import last_verdicts

    with told_on_interrupt(name), stack.start_progress() as progress:
        running = use_case.wait(name, progress, timeout_s=timeout)
    stack.running(running, as_json=json, last=last_verdicts(running.started, stacks.engine_of(running.started)))
