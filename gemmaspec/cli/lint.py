"""`gemmaspec profile lint|schema`."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmaspec.cli import options, output
from gemmaspec.cli.text import page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    wrong = any(profile.count("error") for profile in linted)
    if strict:
        wrong = wrong or any(profile.count("warning") for profile in linted)
    document = {"ok": not wrong, "profiles": [_document(report) for report in linted]}
    page.answer(document, chain.from_iterable(map(_lines, linted)), as_json=json)
    if not json:
        _tell_counts(linted)
    raise typer.Exit(2 if wrong else 0)


def schema() -> None:
    """Print the JSON Schema of profiles, so that editors can complete and check them.

    The first line of a profile names it: # yaml-language-server: $schema=schema.json
    """
    import json

    from gemmaspec.core.profile.schema import profile_schema

    output.data(json.dumps(profile_schema(), indent=2, ensure_ascii=False))


def _lines(report: Linted) -> Iterator[str]:
    """Yield one profile with what was found in it; nothing for a profile without a remark."""
    from gemmaspec.check.lint.rule import as_text

    if report.invalid or report.findings or report.shapes or report.code:
        yield _title(report)
    if report.code:
        yield f"  runs code of: {', '.join(report.code)}"
    for text in report.shapes:
        yield f"  {text}"
    if report.invalid:
        yield from report.invalid.split("\n")
    for finding in report.findings:
        text = as_text(finding).replace(f" {finding.severity} ", f" {page.judged(finding.severity)} ", 1)
        yield from text.split("\n")


def _tell_counts(linted: Sequence[Linted]) -> None:
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


def _title(linted: Linted) -> str:
    if not linted.vllm:
        return f"{linted.name}: invalid"
    why = ", because the profile does not name one" * linted.assumed
    return f"{linted.name}: checked against vLLM {linted.vllm}{why}"


def _document(report: Linted) -> dict[str, Any]:
    from gemmaspec.check.lint.rule import documentation

    findings = []
    for finding in report.findings:
        findings.append({**finding.document(), "documentation": documentation(finding)})
    return {
        "name": report.name,
        "vllm": report.vllm,
        "assumed": report.assumed,
        "invalid": report.invalid,
        "findings": findings,
        "shapes": report.shapes,
        "checkpoints": report.looked_at,
        "runs_code_of": report.code,
    }
