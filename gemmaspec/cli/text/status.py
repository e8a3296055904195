"""Print `status`: a table of all stacks, or one of them in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemmaspec.cli import output
from gemmaspec.cli.text import replicas, table, verdicts
from gemmaspec.cli.text.stack import report_lines
from gemmaspec.cli.text.verdicts import ago

if TYPE_CHECKING:
    from gemmaspec.deploy.views.group_status import RouterStatus
    from gemmaspec.deploy.views.status import NodeStatus, Status

_COLUMNS = (
    table.Column("NAME"),
    table.Column("PROFILE", rank=4),
    table.Column("ENGINE", rank=2),
    table.Column("PORT", rank=1),
    table.Column("STATE"),
    table.Column("SINCE", rank=3),
    table.Column("DRAFTING", rank=5),
    table.Column("", wraps=True),
)
_COLOURS = {"ready": 32, "starting": 33, "exited": 31, "unknown": 35, "stopped": 2}


def show(found: Sequence[Status], routers: Sequence[RouterStatus], *, one: bool, as_json: bool) -> None:
    """Print the status of all stacks and routers as a table, or of one stack, or one router with its replicas."""
    if as_json:
        shown = {"stacks": [_document(each) for each in found]}
        output.json_data({**shown, "routers": replicas.documents(routers)} if routers else shown)
    elif not found and not routers:
        output.progress("no stack was started on this machine")
    elif one:
        for each in found:
            _whole(each)
        for router in routers:
            replicas.router_lines(router)
    else:
        table.show(_COLUMNS, [*map(_row, found), *map(replicas.router_row, routers)])


def _row(one: Status) -> tuple[str, ...]:
    started = one.started
    own = "" if started.profile == started.server.name else started.profile
    cause = one.cause.why if one.cause else ""
    said = "; ".join(part for part in (one.why, cause) if part) or one.problem
    changed = "files have changed since the start" if one.changed else said
    port = str(started.server.port or "-")
    return (
        started.server.name,
        own or started.server.name,
        started.engine,
        port,
        one.word,
        ago(one.since),
        _drafts(one),
        changed,
    )


def _drafts(one: Status) -> str:
    if not one.started.server.speculates:
        return "off"
    length = one.counters.acceptance_length if one.counters and one.counters.drafts else None
    return f"{length:.2f}" if length is not None else "-"


def _whole(one: Status) -> None:
    server = one.started.server
    why = f": {one.why}" if one.why else ""
    since = f", {ago(one.since)}" if one.since else ""
    detail = f"; {one.state.detail}" if one.state.detail and one.state.detail not in one.why else ""
    word = output.coloured(one.word, _COLOURS[one.word])
    output.told(f"{server.name} is {word}{why}  ({one.started.engine}{detail}{since})")
    if one.cause and one.cause.why:
        output.told(f"  cause     {one.cause.why}")
    if one.cause and one.cause.fix:
        output.told(f"  fix       {one.cause.fix}")
    if one.running:
        output.told(f"  address   {server.base_url}/v1   model {server.model}")
        if one.problem:
            output.told(f"  WARNING   {one.problem}")
        report_lines(one.report)
        if one.logged.backends:
            output.told(f"  attention {', '.join(one.logged.backends)} (logged)")
        for line in one.logged.warnings:
            output.told(f"  WARNING   {line}")
        if one.speedless:
            output.told(f"  WARNING   it runs {one.speedless}")
        for file in one.changed:
            output.told(f"  CHANGED   {file}")
        _drafting(one)
    for node in one.nodes:
        output.told(f"  {'nodes' if not node.rank else '':<9} {_node(node)}")
    for line in verdicts.lines(one.last):
        output.told(line)
    if one.cause:
        output.told(f"  log       gemmaspec logs {server.name}")
    if one.next:
        output.told(f"  next      {one.next}")


def _node(node: NodeStatus) -> str:
    """Return one rank for people: where it runs, how it is, and whether it carries what rank 0 carries."""
    same = {True: "the same plan and files", False: "OTHER plan or files", None: "no report to compare"}[node.same]
    plan = f"plan {node.plan[:12]}" if node.plan else "no plan known"
    detail = f" ({node.state.detail})" if node.state.detail else ""
    return f"rank {node.rank} on {node.host}: {node.state.status}{detail}; {plan if not node.rank else same}"


def _drafting(one: Status) -> None:
    counters = one.counters
    if counters and counters.drafts:
        accepted = f"{counters.accepted_tokens} of {counters.draft_tokens} draft tokens accepted"
        output.told(f"  drafted   {accepted}, acceptance length {counters.acceptance_length:.2f}")
    elif counters is None:
        output.told("  drafted   unknown, because the server does not answer yet")


def _document(one: Status) -> dict[str, Any]:
    server = one.started.server
    return {
        "name": server.name,
        "profile": one.started.profile,
        "engine": one.started.engine,
        "status": one.state.status,
        "state": one.word,
        "why": one.why or None,
        "cause": one.cause.why if one.cause and one.cause.why else None,
        "fix": one.cause.fix if one.cause else None,
        "since": one.since,
        "next": one.next,
        "exit_code": one.state.exit_code,
        "restarts": one.state.restarts,
        "detail": one.state.detail,
        "address": None if one.damaged else f"{server.base_url}/v1",
        "port": server.port or None,
        "model": server.model or None,
        "problem": one.problem or None,
        "speculation": one.counters,
        "report": one.report,
        "attention": one.logged.backends,
        "logged": one.logged.warnings,
        "without_speed_patches": one.speedless or None,
        "nodes": [
            {
                "rank": node.rank,
                "host": node.host,
                "status": node.state.status,
                "exit_code": node.state.exit_code,
                "detail": node.state.detail,
                "plan_sha256": node.plan,
                "same": node.same,
            }
            for node in one.nodes
        ],
        "changed": one.changed,
        **verdicts.document(one.last),
    }
