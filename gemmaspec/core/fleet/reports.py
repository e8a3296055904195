"""What the launchers' reports of one server's hosts must agree on: plan, versions, patched files, models. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gemmaspec.core.errors import GemmaspecError, PatchConflict

_REPORT: Final = "the launcher's report"
_MAYBE_UNKNOWN: Final = frozenset({"target", "draft", "nccl", "transformers"})


def reports_disagree(name: str, reports: Mapping[str, Mapping[str, Any] | None]) -> GemmaspecError | None:
    """Return the error for launchers of a server, by host, that did not do the same; None if their reports are equal.

    Plan, versions and the bytes of every patched file count; times and paths of one machine do not.
    """
    hint = f"gemmaspec down {name}    # then up again, with one image on all hosts"
    facts = {host: _compared(report) for host, report in reports.items()}
    for host, reported in facts.items():
        if unknown := reported.get(_REPORT):
            return PatchConflict(f"whether ranks run the same is unknown: {_REPORT} is {unknown} on {host}", hint=hint)
    (first, expected), *others = facts.items()
    for host, reported in others:
        unknown_here = _MAYBE_UNKNOWN - (expected.keys() & reported.keys())
        for what in sorted((expected.keys() | reported.keys()) - unknown_here):
            if expected.get(what) != reported.get(what):
                return PatchConflict(
                    f"the ranks do not run the same: {what} is {_short(expected.get(what))} on {first} "
                    f"and {_short(reported.get(what))} on {host}",
                    hint=hint,
                )
    return None


def same_as(reports: Mapping[str, Mapping[str, Any] | None], host: str) -> bool | None:
    """Return whether a host's report equals that of the first one; None if one of the two is missing."""
    first = next(iter(reports.values()))
    if first is None or reports[host] is None:
        return None
    return reports_disagree("", {"": first, host: reports[host]}) is None


def _compared(report: Mapping[str, Any] | None) -> dict[str, str]:
    """Return what must be equal, by a name for people."""
    try:
        if report is None:
            return {_REPORT: "missing"}
        facts = {"the plan": str(report["plan_sha256"]), "vllm": str(report["vllm"]["version"])}
        facts |= {required["name"]: str(required["found"]) for required in report["requires"]}
        for patch in report["patches"]:
            facts |= {row["path"]: str(row["sha256_after"]) for row in patch["files"]}
        facts |= {name: str(rank) for name, rank in (report.get("ranks") or {}).items() if rank}
    except (KeyError, TypeError, AttributeError):
        return {_REPORT: "damaged"}
    return facts


def _short(value: str | None) -> str:
    if value is None:
        return "missing"
    if len(value) > 32:
        return f"{value[:12]}…"
    return value
