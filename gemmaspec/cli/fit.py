"""`gemmaspec fit`."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from gemmaspec.cli import options, output
from gemmaspec.errors import UsageError


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


def gigabytes(text: str) -> float:
    """Return a size in units of 10^9 bytes. Raises UsageError for what is none."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise UsageError(f"--memory {text!r} is not a size such as 128GB or 119GiB")
    number = float(found[1]) * _UNITS[found[2].lower()] / 1e9
    if not 0.001 <= number <= 1_000_000:
        raise UsageError(f"--memory {text!r} is not a machine's memory")
    return number


_SIZE: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(|[mgt]b?|[mgt]ib)", re.IGNORECASE)
_UNITS: Final = {
    "": 1e9, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9, "t": 1e12, "tb": 1e12,
    "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
}  # fmt: skip


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
        str | None,
        typer.Option("--memory", metavar="SIZE", help="Memory instead of the machine's: 128GB, 119GiB; 128 is in GB."),
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
    from gemmaspec.deploy.fit import FitRequest
    from gemmaspec.deploy.fit import fit as use_case
    from gemmaspec.fit.report import document

    request = FitRequest(
        profile=profile,
        overrides=tuple(set_ or ()),
        no_spec=no_spec,
        release=release,
        machine=machine,
        memory_gb=gigabytes(memory) if memory else None,
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
