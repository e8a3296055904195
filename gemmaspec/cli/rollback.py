"""`gemmaspec rollback`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gemmaspec.cli import options, output

if TYPE_CHECKING:
    from gemmaspec.deploy.knowngood import KnownGood


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("rollback")(rollback)


def rollback(
    name: options.OptionalStack = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="ID", help="This known good stack, not the last.", autocompletion=options.complete_good
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the known good stacks, the newest first.")] = False,
    timeout: options.Timeout = 1800,
    json: options.Json = False,
) -> None:
    """Go back to the last stack that became ready, before the one that was started last.

    It is started as it was: same files, same image by digest, same model revisions. No network is needed while image
    and models are on this machine. The profile is not changed: the next `up` renders it again.
    """
    from gemmaspec.cli.text import stack
    from gemmaspec.deploy import rollback as use_case
    from gemmaspec.deploy.knowngood import known_goods

    if list_:
        chosen = name or use_case.only_name()
        _list(list(known_goods(chosen)), use_case.current(chosen), as_json=json)
        return
    with stack.start_progress() as progress:
        running = use_case.rollback(name, to=to, timeout_s=timeout, progress=progress)
    stack.running(running, as_json=json)


def _list(goods: list[KnownGood], current: str | None, *, as_json: bool) -> None:
    if as_json:
        rows = [{"id": good.id, "current": good.key == current, "facts": dict(good.facts.facts())} for good in goods]
        output.json_data({"known_good": rows})
        return
    if not goods:
        output.progress("no known good stack of that name")
    for good in goods:
        mark = "*" if good.key == current else " "
        image = f"  {good.facts.image.name}" if good.facts.image else ""
        output.data(f"{mark} {good.id}  {good.started.engine}  vllm {good.facts.versions.vllm}{image}")
