"""`gemmaspec lock`, `diff` and `rollback`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from gemmaspec.cli import options, output

if TYPE_CHECKING:
    from gemmaspec.deploy.knowngood import KnownGood


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (lock, diff, rollback):
        app.command(command.__name__)(command)


def lock(profile: options.Profile, engine: options.Engine = None, json: options.Json = False) -> None:
    """Write down exactly what a profile runs: image digest, model revisions, versions, plan.

    The lock lies beside the profile, as NAME.lock; a shipped profile's in your own profile folder.
    `up --locked` then runs this and nothing else.
    """
    from gemmaspec.deploy.lock import write_lock
    from gemmaspec.engine.choose import choose_engine
    from gemmaspec.profile.load import load_profile

    chosen, _ = choose_engine(options.engine_name(engine))
    written = write_lock(load_profile(profile), chosen.name, output.progress)
    if json:
        changes = [dataclasses.asdict(change) for change in written.moved]
        content = written.lock.model_dump(by_alias=True)
        output.json_data({"ok": True, "file": str(written.file), "lock": content, "moved": changes})
        return
    for change in written.moved:
        output.data(str(change))
    state = "locked" if written.first else "locked again" if written.moved else "locked already, nothing moved"
    output.data(f"{written.lock.profile} is {state}: {written.file}")


def diff(profile: options.Profile, set_: options.Set = None, json: options.Json = False) -> None:
    """Show what a restart would change: files, command and image of the running stack against the profile as it is now.

    Rendered with the options it was started with. Exit code 0 when nothing would change, 3 when something would.
    """
    from gemmaspec.deploy.diff import drift

    found = drift(profile, overrides=set_ or ())
    if json:
        output.json_data({"ok": found.same, **dataclasses.asdict(found)})
    else:
        for text in (found.files, found.command, str(found.image) if found.image else ""):
            output.data(text) if text else None
        output.progress(f"{found.name} runs as it would be rendered now") if found.same else None
    raise typer.Exit(0 if found.same else 3)


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
