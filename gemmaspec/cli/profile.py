"""`gemmaspec profile list|show`, and where lint and schema join them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gemmaspec.cli import help as help_
from gemmaspec.cli import lint, options, output
from gemmaspec.core.errors import UsageError


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = help_.group("profile")
    group.command("list")(list_)
    group.command("show")(show)
    group.command("new")(new)
    group.command("lint")(lint.lint)
    group.command("schema")(lint.schema)
    app.add_typer(group, name="profile")


def list_(json: options.Json = False) -> None:
    """List the profiles that you can run, where each comes from, and which were started."""
    from gemmaspec.cli.text import table
    from gemmaspec.run.kept.profiles import listed

    rows = listed()
    columns = (
        table.Column("NAME"), table.Column("FROM", 2), table.Column("STATE", 1), table.Column("MACHINE", 3),
        table.Column("SUMMARY", wraps=True),
    )  # fmt: skip
    cells = [(row.name, row.source, row.state, row.machine, row.summary) for row in rows]
    table.answer({"profiles": rows}, columns, cells, as_json=json)


def new(
    name: Annotated[str, options.argument("NAME")],
    parent: Annotated[str | None, options.option("--from", autocompletion=options.complete_profile)] = None,
    command: Annotated[str | None, options.option("--from-command")] = None,
    compose: Annotated[Path | None, options.option("--from-compose")] = None,
    running: Annotated[str | None, options.option("--from-running")] = None,
    service: Annotated[str | None, options.option("--service")] = None,
    with_draft: Annotated[bool, options.option("--with-draft")] = False,
) -> None:
    """Create a profile in your own profile folder: one that extends another, or one from what you serve with today.

    Every flag that has no key in a profile is named, with what gemmaspec does instead.
    """
    from gemmaspec.run.kept import newprofile

    newprofile.check_name(name)
    if sum(source is not None for source in (parent, command, compose, running)) != 1:
        raise UsageError(
            "give one of --from, --from-command, --from-compose and --from-running",
            hint=f"gemmaspec profile new {name} --from spark-31b-mtp",
        )
    if parent is not None and with_draft:
        raise UsageError("--with-draft goes with --from-command, --from-compose and --from-running")
    if service is not None and compose is None:
        raise UsageError("--service goes with --from-compose")
    if command is not None:
        new = newprofile.new_from_command(name, command, with_draft=with_draft, machine=_asked_machine)
    elif compose is not None:
        new = newprofile.new_from_compose(name, compose, service=service, with_draft=with_draft, machine=_asked_machine)
    elif running is not None:
        new = newprofile.new_from_running(name, running, with_draft=with_draft, machine=_asked_machine)
    else:
        new = newprofile.new_profile(name, parent=str(parent))
    output.data(str(new.file))
    for line in new.left:
        output.progress(f"not taken over: {line}")
    for line in new.decided:
        output.progress(line)
    if parent is None:
        from gemmaspec.check.use_cases.offer import today

        for line in today(name, new.draft):
            output.progress(line)
    output.progress(f"next: edit it, then gemmaspec profile lint {name} and gemmaspec up {name}")


def _asked_machine() -> str | None:
    """Return the machine that the user names on the terminal; None without a terminal, and for no answer."""
    from gemmaspec.core.profile.foreign_words import unknown_machine
    from gemmaspec.core.profile.machines import MACHINES, as_named

    if not sys.stdin.isatty():
        return None
    known = ", ".join(machine.name for machine in MACHINES.values() if machine.memory_gb)
    question = f"Which GPU serves it? ({known}; Enter: another one)"
    while answer := typer.prompt(question, default="", show_default=False, err=True).strip():
        named = as_named(answer)
        if named in MACHINES:
            return named
        output.progress(unknown_machine(answer))
    return None


def show(
    profile: options.Profile, set_: options.Set = None, no_spec: options.NoSpec = False, json: options.Json = False
) -> None:
    """Print a profile as it will be used, with everything it extends and every override merged in."""
    from gemmaspec.core.profile.load import load_profile

    loaded = load_profile(profile, overrides=set_ or (), no_spec=no_spec)
    content = loaded.profile.model_dump(by_alias=True, exclude_defaults=True, mode="json")
    if json:
        output.json_data({"file": str(loaded.file), "profile": content})
        return
    import yaml

    output.data(f"# {loaded.file}\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}")
