"""`gemmaspec fit`."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from gemmaspec.cli import options, output
from gemmaspec.errors import UsageError


def gigabytes(text: str) -> float:
    """Return a size in units of 10^9 bytes. Raises UsageError for an invalid one."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise UsageError(f"--memory {text!r} is not a size; use one such as 128GB or 119GiB")
    number = float(found[1]) * _UNITS[found[2].lower()] / 1e9
    if not 0.001 <= number <= 1_000_000:
        raise UsageError(f"--memory {text!r} is out of range for a machine's memory")
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
    release: options.Release = None,
    machine: options.Machine = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory", metavar="SIZE", help="Override the machine's memory: 128GB or 119GiB; a plain number is in GB."
        ),
    ] = None,
    context: Annotated[
        int,
        typer.Option("--cached", metavar="TOKENS", min=1, help="Tokens in the cache, for the speed of one request."),
    ] = 1024,
    json: options.Json = False,
) -> None:
    """Estimate whether a profile fits its machine, how much context is left, what to change, and how fast it can be.

    Needs no GPU and reads no weights. Exit code 1 if it does not fit, 4 if a model cannot be read.
    """
    from gemmaspec.cli.text import fit
    from gemmaspec.deploy.checks.fit import FitRequest
    from gemmaspec.deploy.checks.fit import fit as use_case
    from gemmaspec.fit.document import document

    request = FitRequest(
        profile=profile,
        overrides=tuple(set_ or ()),
        no_spec=no_spec,
        release=release,
        machine=machine,
        memory_gb=gigabytes(memory) if memory else None,
        context=context,
    )
    found = use_case(request)
    if json:
        output.json_data(document(found))
    else:
        for line in fit.lines(found):
            output.told(line)
    raise typer.Exit(0 if found.fits else 1)
