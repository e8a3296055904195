"""What a rule is, and what it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gemmaspec.finding import Finding, Severity
from gemmaspec.lint.subject import Subject

Path = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class Issue:
    """What a rule yields: the key at fault, and one sentence each for the problem and the fix."""

    path: Path
    message: str
    fix: str
    severity: Severity | None = None
    """The severity, if it differs from the rule's."""


Check = Callable[[Subject], Iterator[Issue]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One check. Rules of one cause share a code, which is stable and never reused."""

    code: str
    severity: Severity
    check: Check
    any_release: bool = False
    """Whether its issues do not depend on the vLLM that runs."""


def rule(code: str, severity: Severity, *, any_release: bool = False) -> Callable[[Check], Rule]:
    """Return a decorator that turns a check into a rule."""
    return lambda check: Rule(code=code, severity=severity, check=check, any_release=any_release)


def documentation(finding: Finding) -> str:
    """Return the command that explains a finding's rule."""
    return f"gemmaspec explain {finding.code}"


def as_text(finding: Finding) -> str:
    """Return a finding of a rule as text in two lines."""
    head = f"{finding.place}: {finding.severity} {finding.code}: {finding.key}: {finding.message}"
    return f"{head}\n    {finding.fix}  [{documentation(finding)}]"
