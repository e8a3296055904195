"""`gemmaspec render`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmaspec.cli import options, output


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("render")(render)


def render(
    profile: options.Profile,
    out: options.Out = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; print the differences and exit 3 if there are any.")
    ] = False,
    single_file: Annotated[
        bool, typer.Option("--single-file", help="Put everything into one compose.yaml, to paste or share.")
    ] = False,
    set_: options.Set = None,
    no_spec: options.NoSpec = False,
    locked: options.Locked = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite and remove files that gemmaspec did not write.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Write a profile's stack: compose.yaml, plan, launcher, speculative config, chat template."""
    from gemmaspec.deploy import render as use_case
    from gemmaspec.deploy.lint import stop_on_errors
    from gemmaspec.profile.load import load_profile
    from gemmaspec.stack import folder
    from gemmaspec.stack.build import build_stack

    loaded = load_profile(profile, overrides=set_ or (), no_spec=no_spec)
    stop_on_errors(loaded, output.progress)
    if locked:
        from gemmaspec.deploy.lock import as_locked

        loaded = as_locked(loaded, "docker")
    stack = build_stack(loaded, form="single-file" if single_file else "folder")
    out = out or Path(stack.profile.name)
    if check:
        difference = folder.difference(stack, out)
        output.data(difference) if difference and not json else None
        if json:
            output.json_data({"ok": not difference, "folder": str(out), "difference": difference})
        raise typer.Exit(3 if difference else 0)
    written = use_case.render(loaded, stack, out, force=force)
    if json:
        output.json_data({"ok": True, "folder": str(out), "files": written})
        return
    output.progress(f"wrote {', '.join(written)} to {out}/")
    output.progress(f"  next: docker compose -f {out}/compose.yaml up    # or: gemmaspec up {stack.profile.name}")
