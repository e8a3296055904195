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
    json: options.Json = False,
) -> None:
    """Start a profile and wait until it has drafted, verified and answered."""
    from gemmaspec.cli.text import stack
    from gemmaspec.deploy import up as use_case

    request = use_case.Request(
        profile=profile,
        overrides=tuple(set_ or ()),
        no_spec=no_spec,
        engine=options.engine_name(engine),
        locked=locked,
        timeout_s=timeout,
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

    request = use_case.again(name, timeout_s=timeout)
    use_case.dry_run(request, lambda _: None)  # raises while it still runs, if it could not be started again
    use_case.down(name)
    with stack.start_progress() as progress:
        running = use_case.up(request, progress)
    stack.running(running, as_json=json)
