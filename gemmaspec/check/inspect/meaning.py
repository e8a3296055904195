"""What each finding means: the rows of findings.yaml, by code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gemmaspec.core import strict_yaml
from gemmaspec.core.finding import Finding, Severity

TABLE: Final = Path(__file__).with_name("findings.yaml")
"""Severity, impact, fix and patches of each code, as far as they are always the same."""


_FOLDERS: Final = ("/", "~", ".", "state:")
"""What the name of a checkpoint in a folder begins with."""
_FROM_HUB: Final = "fetch it again: hf download {ref}"
_FACT: Final = re.compile(r"\{\w+\}")
"""A fact of a checkpoint in a row."""


def meanings() -> Mapping[str, tuple[str, str, str]]:
    """Return what each code means without a checkpoint: what is found, what vLLM does, and what to do.

    The last two are empty where the row does not say it.
    """
    meanings = {}
    for code, row in strict_yaml.table(TABLE).items():
        meanings[code] = (row["about"], _without_facts(row.get("impact", "")), _to_do(row))
    return meanings


def _to_do(row: Mapping[str, str | list[str]]) -> str:
    steps = [f"patch {patch}" for patch in row.get("patches", ())]
    if fix := row.get("fix"):
        steps.append(_without_facts(str(fix)))
    return "; ".join(steps)


def _without_facts(text: str) -> str:
    return _FACT.sub("…", text)


def finding(
    code: str,
    message: str,
    *,
    severity: Severity | None = None,
    impact: str | None = None,
    fix: str | None = None,
    **facts: object,
) -> Finding:
    """Return a finding with what its code means; `facts` fill the row, and the other words take its place."""
    row = strict_yaml.table(TABLE)[code]
    means = row.get("fix", "")
    if str(facts.get("ref", "")).startswith(_FOLDERS):
        means = means.replace(_FROM_HUB, "copy it again from where it came")
    if impact is None:
        impact = row.get("impact", "").format(**facts)
    if fix is None:
        fix = means.format(**facts)
    return Finding(
        code=code,
        severity=severity or row["severity"],
        message=message,
        impact=impact,
        fix=fix,
        patches=tuple(row.get("patches", ())),
    )
