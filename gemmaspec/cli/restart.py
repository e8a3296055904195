"""`gemmaspec restart`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NoReturn

import typer

from gemmaspec.cli import options, output
from gemmaspec.cli.target import carry_out

if TYPE_CHECKING:
    from collections.abc import Sequence


def restart(
    name: options.Stack,
    set_: options.Set = None,
    timeout: options.Timeout = 1800,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Render a profile again and restart its server, with the options that it was started with.

    Options given here are added to those, and kept for the next restart. Replicas are restarted one at a time.
    With --dry-run, exit code 3 if something would change.
    """
    if dry_run:
        _drift(name, set_ or (), json=json)
    from gemmaspec.run.kept.groups import is_group
    from gemmaspec.serve import replicas
    from gemmaspec.serve import up as single

    verb = replicas.restart if is_group(name) else single.restart
    carry_out(name, partial(verb, name, timeout_s=timeout, overrides=tuple(set_ or ())), as_json=json)


def _drift(name: str, overrides: Sequence[str], *, json: bool) -> NoReturn:
    """Print what a restart would change in what runs."""
    from gemmaspec.look.diff import drift

    drifted = drift(name, overrides=overrides)
    if json:
        output.json_data({"ok": drifted.same, **vars(drifted)})
    else:
        for text in (*drifted.keys, drifted.files, drifted.command, str(drifted.image) if drifted.image else ""):
            if text:
                output.data(text)
        if drifted.same:
            output.progress(f"{drifted.name} is up to date: a restart would change nothing ({drifted.engine})")
    raise typer.Exit(0 if drifted.same else 3)
