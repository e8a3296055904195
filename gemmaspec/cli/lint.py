"""`gemmaspec profile lint|schema`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmaspec.cli import options, output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemmaspec.check.use_cases.lint import Linted

Profiles = Annotated[list[str] | None, options.argument("PROFILE", autocompletion=options.complete_profile)]


def lint(
    profiles: Profiles = None,
    release: options.Release = None,
    strict: Annotated[bool, options.option("--strict", of="lint")] = False,
    every: Annotated[bool, options.option("--shipped")] = False,
    models: Annotated[bool, options.option("--models")] = False,
    set_: options.Set = None,
    no_spec: options.NoSpec = False,
    json: options.Json = False,
) -> None:
    """Check profiles against the vLLM release that they run.

    Exit code 2 if there are errors.
    """
    from gemmaspec.check.use_cases import lint

    request = lint.LintRequest(
        names=profiles or (), every=every, release=release, overrides=set_ or (), no_spec=no_spec, models=models
    )
    linted = lint.lint(request)
    wrong = any(profile.count("error") or (strict and profile.count("warning")) for profile in linted)
    if json:
        output.json_data({"ok": not wrong, "profiles": [_as_json(report) for report in linted]})
    else:
        _tell(linted)
    raise typer.Exit(2 if wrong else 0)


def schema() -> None:
    """Print the JSON Schema of profiles, so that editors can complete and check them.

    The first line of a profile names it: # yaml-language-server: $schema=schema.json
    """
    import json

    from gemmaspec.core.profile.schema import profile_schema

    output.data(json.dumps(profile_schema(), indent=2, ensure_ascii=False))


def _tell(linted: Sequence[Linted]) -> None:
    from gemmaspec.check.lint.rule import as_text

    for report in linted:
        if report.invalid or report.findings or report.shapes or report.code:
            output.data(_heading(report))
        if report.code:
            output.data(f"  runs code of: {', '.join(report.code)}")
        for text in report.shapes:
            output.data(f"  {text}")
        if report.invalid:
            output.data(report.invalid)
        for finding in report.findings:
            output.told(*_coloured(as_text(finding), finding.severity).split("\n"))
    counts = [(sum(report.count(name) for report in linted), name) for name in ("error", "warning", "note")]
    summary = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts)
    left_out = sum(report.inherited for report in linted)
    if left_out:
        output.progress(
            f"{left_out} more in shipped profiles that yours extend; show them with: gemmaspec profile lint --shipped"
        )
    output.progress(f"{len(linted)} profile{'' if len(linted) == 1 else 's'}: {summary}{_unseen(linted)}")


def _unseen(linted: Sequence[Linted]) -> str:
    """Return that no checkpoint was looked at, where none was: shapes and quantizations are then not checked."""
    if any(report.looked_at for report in linted) or all(report.invalid for report in linted):
        return ""
    return "; no checkpoint was looked at, --models reads them"


def _heading(linted: Linted) -> str:
    if not linted.vllm:
        return f"{linted.name}: invalid"
    why = ", because the profile does not name one" * linted.assumed
    return f"{linted.name}: checked against vLLM {linted.vllm}{why}"


def _coloured(text: str, severity: str) -> str:
    colour = {"error": 31, "warning": 33}.get(severity, 36)
    return text.replace(f" {severity} ", f" {output.coloured(severity, colour)} ", 1)


def _as_json(profile: Linted) -> dict[str, Any]:
    from gemmaspec.check.lint.rule import documentation

    findings = [{**finding.document(), "documentation": documentation(finding)} for finding in profile.findings]
    facts = {"name": profile.name, "vllm": profile.vllm, "assumed": profile.assumed, "invalid": profile.invalid}
    seen = {"shapes": list(profile.shapes), "checkpoints": list(profile.looked_at)}
    return {**facts, "findings": findings, **seen, "runs_code_of": profile.code}
