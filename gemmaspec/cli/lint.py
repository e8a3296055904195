"""`gemmaspec profile lint|schema`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmaspec.cli import options, output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemmaspec.deploy.lint import Linted

Profiles = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROFILE",
        help="Names of profiles, or paths of profile files; all of your own if none is given.",
        autocompletion=options.complete_profile,
        show_default=False,
    ),
]


def complete_release(incomplete: str) -> list[str]:
    """Releases of the table."""
    from gemmaspec.releases.facts import releases

    return [release for release in releases() if release.startswith(incomplete)]


def lint(
    profiles: Profiles = None,
    release: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="RELEASE",
            help="Check against this vLLM instead of the profile's own: what if I upgrade?",
            autocompletion=complete_release,
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings count as errors do.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="The shipped profiles too, and what yours inherit from them.")
    ] = False,
    models: Annotated[
        bool, typer.Option("--models", help="Look into the checkpoints too: folder, cache, or a few reads of the Hub.")
    ] = False,
    set_: options.Set = None,
    no_spec: options.NoSpec = False,
    json: options.Json = False,
) -> None:
    """Check profiles against what the vLLM that they run accepts and does.

    Exit code 2 when there are errors.
    """
    from gemmaspec.deploy import lint

    request = lint.LintRequest(
        names=profiles or (), every=every, release=release, overrides=set_ or (), no_spec=no_spec, models=models
    )
    found = lint.lint(request)
    wrong = any(one.count("error") or (strict and one.count("warning")) for one in found)
    if json:
        output.json_data({"ok": not wrong, "profiles": [_as_json(one) for one in found]})
    else:
        _tell(found)
    raise typer.Exit(2 if wrong else 0)


def schema(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="File to write; printed when not given.")
    ] = None,
) -> None:
    """Print the JSON Schema of profiles, which tells an editor the keys, their meaning and their values."""
    import json

    from gemmaspec.profile.schema import profile_schema

    text = json.dumps(profile_schema(), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        output.data(text)
        return
    from gemmaspec.files import write_whole

    write_whole(out, text)
    output.progress(f"wrote {out}")
    output.progress(f"  first line of a profile beside it: # yaml-language-server: $schema={out.name}")


def _tell(found: Sequence[Linted]) -> None:
    from gemmaspec.lint.rule import as_text

    for one in found:
        if one.invalid or one.findings or one.shapes:
            output.data(_heading(one))
        for text in one.shapes:
            output.data(f"  {text}")
        if one.invalid:
            output.data(one.invalid)
        for finding in one.findings:
            output.told(_coloured(as_text(finding), finding.severity))
    counts = [(sum(one.count(name) for one in found), name) for name in ("error", "warning", "note")]
    summary = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts)
    left_out = sum(one.inherited for one in found)
    if left_out:
        output.progress(f"{left_out} more in the shipped profiles that yours extend: gemmaspec profile lint --all")
    output.progress(f"{len(found)} profile{'' if len(found) == 1 else 's'}: {summary}")


def _heading(one: Linted) -> str:
    if not one.vllm:
        return f"{one.name}: not valid"
    return f"{one.name}: checked against vLLM {one.vllm}{', since nothing says which one runs' * one.assumed}"


def _coloured(text: str, severity: str) -> str:
    """The severity in colour, where the terminal has some."""
    import sys

    if not output.wants_colour(sys.stdout):
        return text
    colour = {"error": 31, "warning": 33}.get(severity, 36)
    return text.replace(f" {severity} ", f" \x1b[{colour}m{severity}\x1b[0m ", 1)


def _as_json(one: Linted) -> dict[str, Any]:
    from gemmaspec.cli.text.finding import of_profile
    from gemmaspec.lint.rule import documentation

    findings = [{**of_profile(finding), "documentation": documentation(finding)} for finding in one.findings]
    own = {"name": one.name, "vllm": one.vllm, "assumed": one.assumed, "invalid": one.invalid}
    return {**own, "findings": findings, "shapes": list(one.shapes)}
