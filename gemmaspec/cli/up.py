"""`gemmaspec up` and `restart`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmaspec.cli import options, output


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (up, restart):
        app.command(command.__name__)(command)


def up(
    profile: options.Profile,
    engine: options.Engine = None,
    set_: options.Set = None,
    no_spec: options.NoSpec = False,
    locked: options.Locked = False,
    timeout: options.Timeout = 1800,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be written and run.")] = False,
    rollback_on_failure: Annotated[
        bool,
        typer.Option(
            "--rollback-on-failure/--no-rollback-on-failure",
            help="Start the stack that was replaced again when this one fails.",
        ),
    ] = True,
    json: options.Json = False,
) -> None:
    """Start a profile and wait until it has drafted, verified and answered."""
    from gemmaspec.cli.text import stack
    from gemmaspec.deploy import up as use_case
    from gemmaspec.deploy.decide import UpRequest

    request = UpRequest(
        profile=profile,
        overrides=tuple(set_ or ()),
        no_spec=no_spec,
        engine=options.engine_name(engine),
        locked=locked,
        timeout_s=timeout,
        rollback_on_failure=rollback_on_failure,
    )
    if dry_run:
        stack.dry_run(use_case.dry_run(request, output.progress), as_json=json)
        return
    with stack.start_progress() as progress:
        running = use_case.up(request, progress)
    stack.running(running, as_json=json)


def restart(name: options.Stack, timeout: options.Timeout = 1800, json: options.Json = False) -> None:
    """Stop a started profile, render it again, and start it with the options it was started with."""
    from gemmaspec.cli.text import stack
    from gemmaspec.deploy import up as use_case

    with stack.start_progress() as progress:
        running = use_case.restart(name, progress, timeout_s=timeout)
    stack.running(running, as_json=json)
