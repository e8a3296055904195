"""What `status --kubernetes` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemmaspec.cli import output
from gemmaspec.cli.text import table
from gemmaspec.cli.text.stack import report_lines

if TYPE_CHECKING:
    from gemmaspec.deploy.views.pods import PodStatus

_COLUMNS = (
    table.Column("POD"),
    table.Column("NAMESPACE", rank=2),
    table.Column("PROFILE", rank=3),
    table.Column("NODE", rank=4),
    table.Column("STATE"),
    table.Column("RESTARTS", rank=1),
    table.Column("", wraps=True),
)


def show(found: Sequence[PodStatus], *, one: bool, as_json: bool) -> None:
    """Print the pods as a table; with a profile named, what the first one's launcher reports, too."""
    if as_json:
        output.json_data({"pods": [_document(each) for each in found]})
        return
    if not found:
        output.progress(
            "no gemmaspec pods in this namespace; for another one: gemmaspec status --kubernetes --namespace NAME"
        )
        return
    table.show(_COLUMNS, [_row(each) for each in found])
    reports = [each.report for each in found if each.report]
    if one and reports:
        report_lines(dict(reports[0]))
        if len(reports) > 1 and not any(each.findings for each in found):
            output.told(f"  same      the plan and every patched file, in {len(reports)} of {len(found)} pods")
    for each in found:
        for finding in each.findings:
            output.told(f"  CHANGED   {each.pod.name}: {finding}")


def _row(one: PodStatus) -> tuple[str, ...]:
    pod = one.pod
    why = one.findings[0] if one.findings else pod.reason or one.problem.partition("\n")[0]
    return pod.name, pod.namespace, one.profile, pod.node or "-", one.word, str(pod.restarts), why


def _document(one: PodStatus) -> dict[str, Any]:
    return {
        **vars(one.pod),
        "profile": one.profile,
        "state": one.word,
        "problem": one.problem or None,
        "findings": one.findings,
        "report": one.report,
    }
