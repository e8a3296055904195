"""What `status --kubernetes` prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gemmaspec.cli import output
from gemmaspec.cli.text import page, table
from gemmaspec.cli.text.stack import report_rows

if TYPE_CHECKING:
    from gemmaspec.look.pods import PodStatus

_COLUMNS = (
    table.Column("POD"), table.Column("NAMESPACE", 2), table.Column("PROFILE", 3), table.Column("NODE", 4),
    table.Column("STATE"), table.Column("RESTARTS", 1), table.Column("", wraps=True),
)  # fmt: skip


def show(pods: Sequence[PodStatus], *, one: bool, as_json: bool) -> None:
    """Print the pods as a table; with a profile named, what the first one's launcher reports, too."""
    if not pods and not as_json:
        output.progress(
            "no gemmaspec pods in this namespace; for another one: gemmaspec status --kubernetes --namespace NAME"
        )
        return
    page.answer({"pods": [_document(each) for each in pods]}, _lines(pods, one=one), as_json=as_json)


def _lines(pods: Sequence[PodStatus], *, one: bool) -> Iterator[str]:
    yield from table.lines(_COLUMNS, [_row(each) for each in pods], width=output.width_of(sys.stdout))
    yield from page.rows_below(_rows(pods, one=one))


def _rows(pods: Sequence[PodStatus], *, one: bool) -> Iterator[page.Row]:
    reports = [each.report for each in pods if each.report]
    if one and reports:
        yield from report_rows(reports[0])
        if len(reports) > 1 and not any(each.findings for each in pods):
            yield "same", f"the plan and every patched file, in {len(reports)} of {len(pods)} pods"
    for each in pods:
        for finding in each.findings:
            yield "CHANGED", f"{each.pod.name}: {finding}"


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
