"""`gemmaspec lock`."""

from __future__ import annotations

import dataclasses

import typer

from gemmaspec.cli import options, output


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("lock")(lock)


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
