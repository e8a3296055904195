"""What `status --kubernetes` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemmaspec.cli import output
from gemmaspec.cli.text import page, table

if TYPE_CHECKING:
    from gemmaspec.look.pods import PodStatus
from gemmaspec.cli.text.stack import report_rows

_COLUMNS = (
    table.Column("POD"), table.Column("NAMESPACE", 2), table.Column("PROFILE", 3), table.Column("NODE", 4),
    table.Column("STATE"), table.Column("RESTARTS", 1), table.Column("", wraps=True),
)  # fmt: skip


def show(pods: Sequence[PodStatus], *, one: bool, as_json: bool) -> None:
    """Print the pods as a table; with a profile named, what the first one's launcher reports, too."""
    if as_json:
        output.json_data({"pods": [_document(each) for each in pods]})
        return
    if not pods:
        output.progress(
            "no gemmaspec pods in this namespace; for another one: gemmaspec status --kubernetes --namespace NAME"
        )
        return
    table.show(_COLUMNS, [_row(each) for each in pods])
    reports = [each.report for each in pods if each.report]
    if one and reports:
        output.told(*page.rows_below(report_rows(reports[0])))
        if len(reports) > 1 and not any(each.findings for each in pods):
            output.told(f"  same      the plan and every patched file, in {len(reports)} of {len(pods)} pods")
    for each in pods:
        for finding in each.findings:
            output.told(f"  CHANGED   {each.pod.name}: {finding}")


def _row(status: PodStatus) -> tuple[str, ...]:
    pod = status.pod
    if status.findings:
        why = status.findings[0]
    else:
        why = pod.reason or status.problem.partition("\n")[0]
    return pod.name, pod.namespace, status.profile, pod.node or "-", status.word, str(pod.restarts), why


def _document(pod: PodStatus) -> dict[str, Any]:
    return {
        **vars(pod.pod),
        "profile": pod.profile,
        "state": pod.word,
        "problem": pod.problem or None,
        "findings": pod.findings,
        "report": pod.report,
    }
