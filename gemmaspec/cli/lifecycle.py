"""`gemmaspec up`, `down`, `restart`, `status`, `logs` and `demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmaspec.cli import options, output


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (up, down, restart, status, logs, demo):
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


def down(name: options.Stack, json: options.Json = False) -> None:
    """Stop a started profile. Its files, caches and models stay."""
    from gemmaspec.deploy import up as use_case

    was_running = use_case.down(name)
    if json:
        output.json_data({"ok": True, "name": name, "was_running": was_running})
        return
    output.progress(f"{name} is stopped" if was_running else f"{name} was not running")


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


def status(name: options.OptionalStack = None, json: options.Json = False) -> None:
    """Show what runs, its patches as the server itself reports them, and its acceptance length.

    Exit code 5 when a file of the plan, the overlay or the package was changed since the start, 1 when NAME is
    given and is not running.
    """
    from gemmaspec.cli.text import stack
    from gemmaspec.deploy.status import status as use_case

    found = use_case(name)
    stack.statuses(found, as_json=json)
    if any(one.findings for one in found):
        raise typer.Exit(5)
    if name and not found[0].running:
        raise typer.Exit(1)


def logs(
    name: options.Stack,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the server ends, or Ctrl-C.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Only the last N lines.")] = None,
) -> None:
    """Print the log of a started profile, since its last start."""
    from gemmaspec.deploy import stacks

    started = stacks.find(name)
    for line in stacks.engine_of(started).logs(started.server, follow=follow, tail=tail):
        output.data(line)


def demo(
    engine: options.Engine = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running at the end.")] = False,
    json: options.Json = False,
) -> None:
    """Make a tiny Gemma 4 pair on this machine and serve it, with and without speculation."""
    from gemmaspec.cli.text import stack
    from gemmaspec.deploy import demo as use_case

    with stack.start_progress() as progress:
        result = use_case.demo(engine=options.engine_name(engine), keep=keep, progress=progress)
    stack.demo(result, as_json=json)
