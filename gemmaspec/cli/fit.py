"""`gemmaspec fit`."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from gemmaspec.cli import options
from gemmaspec.core.errors import UsageError


def gigabytes(text: str) -> float:
    """Return a size in units of 10^9 bytes. Raises UsageError for an invalid one."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"--memory {text!r} is not a size; use one such as 128GB or 119GiB")
    number = float(match[1]) * _UNITS[match[2].lower()] / 1e9
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
    overrides: options.Set = None,
    no_spec: options.NoSpec = False,
    release: options.Release = None,
    machine: options.Machine = None,
    memory: Annotated[str | None, options.option("--memory")] = None,
    context: Annotated[int, options.option("--cached", min=1)] = 1024,
    explain: options.Explain = False,
    json: options.Json = False,
) -> None:
    """Estimate whether a profile fits its machine, how much context is left, what to change, and how fast it can be.

    Needs no GPU and reads no weights. Exit code 1 if it does not fit, 4 if a model cannot be read.
    """
    from gemmaspec.check.fit.document import document
    from gemmaspec.check.use_cases.fit import FitRequest
    from gemmaspec.check.use_cases.fit import fit as use_case
    from gemmaspec.cli.text import fit as text
    from gemmaspec.cli.text import fit_brief, page

    request = FitRequest(
        **options.given(
            profile=profile,
            overrides=overrides,
            no_spec=no_spec,
            release=release,
            machine=machine,
            context=context,
        ),
        memory_gb=gigabytes(memory) if memory else None,
    )
    fitted = use_case(request)
    found = document(fitted)
    page.answer(found, text.lines(fitted) if explain else fit_brief.lines(found), as_json=json)
    raise typer.Exit(0 if fitted.fits else 1)
