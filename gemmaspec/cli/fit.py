"""`gemmaspec fit`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmaspec.cli import options, output


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("fit")(fit)


def complete_machine(incomplete: str) -> list[str]:
    """Names of machines, and `here`."""
    from gemmaspec.profile.machines import MACHINES

    return [name for name in (*MACHINES, "here") if name.startswith(incomplete)]


def complete_release(incomplete: str) -> list[str]:
    """Releases of vLLM that are known."""
    from gemmaspec.releases.facts import releases

    return [release for release in releases() if release.startswith(incomplete)]


def fit(
    profile: options.Profile,
    set_: options.Set = None,
    no_spec: options.NoSpec = False,
    release: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="RELEASE", help="Ask about another vLLM, as in 0.33.0.", autocompletion=complete_release
        ),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            metavar="NAME",
            help="Another machine than the profile's; `here` for this one.",
            autocompletion=complete_machine,
        ),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(
            "--memory", metavar="GB", min=0.001, max=1_000_000, help="Memory in 10^9 bytes, instead of the machine's."
        ),
    ] = None,
    context: Annotated[
        int, typer.Option("--context", metavar="TOKENS", min=1, help="Tokens in the cache, for the speed.")
    ] = 1024,
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, help="Requests at once, for the speed.")
    ] = 1,
    json: options.Json = False,
) -> None:
    """Say whether a profile fits its machine, how much context it leaves, what to change, and how fast it can be.

    Needs no GPU and reads no weight. Exit code 1 when it does not fit, 4 when a model cannot be looked at.
    """
    from gemmaspec.cli.text import fit
    from gemmaspec.deploy.fit import Request
    from gemmaspec.deploy.fit import fit as use_case
    from gemmaspec.fit.report import document

    request = Request(
        profile=profile,
        overrides=tuple(set_ or ()),
        no_spec=no_spec,
        release=release,
        machine=machine,
        memory_gb=memory,
        context=context,
        concurrency=concurrency,
    )
    found = use_case(request)
    if json:
        output.json_data(document(found))
    else:
        for line in fit.lines(found):
            output.data(line)
    raise typer.Exit(0 if found.fits else 1)
