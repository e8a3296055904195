"""`gemmaspec down`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from gemmaspec.cli import options, output
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, Interrupted, UsageError


def down(
    name: options.OptionalStack = None,
    every: Annotated[bool, options.option("--all")] = False,
    force: Annotated[bool, options.option("--force", of="down")] = False,
    json: options.Json = False,
) -> None:
    """Stop a server, or the router and all replicas of one. Keeps its files, caches and models."""
    if bool(name) == every:
        raise UsageError("name a server, or use --all", hint="gemmaspec status")
    if force and not name:
        raise UsageError("--force needs the name of a server", hint="gemmaspec status")
    if name:
        was_running = _by_force(name) if force else _down(name)
        if json:
            output.json_data({"ok": True, "name": name, "was_running": was_running})
        else:
            output.progress(_said(name, was_running=was_running))
        return
    _all(json=json)


def _all(*, json: bool) -> None:
    """Stop every stack. One that cannot be stopped is reported and does not keep the others running."""
    from gemmaspec.run.kept import groups, stacks

    rows: list[dict[str, object]] = []
    code = 0
    whole = [name for name in groups.names() if groups.is_group(name)]
    in_groups = set(whole).union(*map(stacks.replicas_of, whole))
    known = {*stacks.names_of_stacks(), *stacks.orphaned()}
    for name in (*whole, *sorted(known - in_groups)):
        try:
            was_running = _down(name)
        except GemmaspecError as error:
            code = code or output.failure(error, as_json=False)
            rows.append({"name": name, "was_running": None, "error": error.message})
            continue
        rows.append({"name": name, "was_running": was_running, "error": None})
        if was_running:
            output.progress(_said(name, was_running=True))
    if json:
        output.json_data({"ok": code == 0, "stacks": rows})
    elif not any(row["was_running"] for row in rows):
        output.progress("nothing is running")
    raise typer.Exit(code)


def _down(name: str) -> bool:
    from gemmaspec.run.kept.groups import is_group
    from gemmaspec.serve import down, replicas

    try:
        if is_group(name):
            return replicas.down(name, output.progress)
        return down.down(name, output.progress)
    except KeyboardInterrupt:
        raise _interrupted(name) from None
    except EnvironmentMissing as error:
        away = error.message.startswith("cannot read ") and (error.hint or "").startswith("ls ")  # nobody else's
        if away or error.message.startswith(("cannot write ", "cannot lock ")):
            raise error.amended(error.message, hint=f"gemmaspec down {name} --force    # needs no file") from None
        raise


def _interrupted(name: str) -> Interrupted:
    from gemmaspec.look.after_interrupt import after_interrupted_down

    return Interrupted(after_interrupted_down(name), hint=f"gemmaspec down {name}    # waits for its end")


def _by_force(name: str) -> bool:
    from gemmaspec.run.kept import stacks
    from gemmaspec.serve.down import down_by_force

    try:
        servers = (*_replicas(stacks.replicas_of, name), name)
        ended = [down_by_force(server, output.progress) for server in servers]
    except KeyboardInterrupt:
        raise _interrupted(name) from None
    return any(ended)


def _replicas(replicas_of: Callable[[str], Sequence[str]], name: str) -> Sequence[str]:
    try:
        return replicas_of(name)
    except GemmaspecError:  # records that cannot be read
        return ()


def _said(name: str, *, was_running: bool) -> str:
    if was_running:
        return f"{name} is stopped"
    return f"{name} was not running"
