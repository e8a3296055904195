"""Print `status`, of all stacks or of one in full, and what happens to replicas and their router."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from gemmaspec.cli import output
from gemmaspec.cli.text import page, table
from gemmaspec.cli.text.stack import ago, logged_rows, report_rows, verdict_document, verdict_rows
from gemmaspec.core.server_state import ServerState, Word
from gemmaspec.run.kept.verdicts import Last

if TYPE_CHECKING:
    from gemmaspec.look.group_status import RouterStatus
    from gemmaspec.look.status import NodeStatus, Status
    from gemmaspec.serve.replicas import Planned
    from gemmaspec.serve.roll import Rolled


def rolled(result: Rolled, *, as_json: bool) -> None:
    """Print the result of `up`, `restart` and `rollback` of replicas."""
    group, end = result.group, result.end
    models = [replica.started.server.model for replica in result.running.values()]
    model = models[0] if models else None
    address = f"{group.router.base_url}/v1"
    document = {
        "ok": True,
        "name": group.name,
        "address": address,
        "model": model,
        "router": _router(group.router),
        "replicas": group.members,
        "changed": end.changed,
        "unchanged": end.untouched,
        "audit": group.audit,
    }
    title = f"{group.name} is ready: {len(group.replicas)} replicas behind haproxy ({group.router.policy})"
    rows = (
        ("address", f"{address}   model {model}" if model else address),
        ("changed", ", ".join(end.changed) or "nothing"),
        ("same", ", ".join(end.untouched)),
        ("audit", str(group.audit)),
    )
    page.answer(document, page.lines(title, rows, names=page.NAMES), as_json=as_json)


def planned(plan: Planned, *, as_json: bool) -> None:
    """Print what `up --dry-run` would do to replicas."""
    roll = plan.roll
    document = {"ok": True, "router": roll.router, "replicas": dict(roll.replicas), "steps": plan.steps}
    page.answer(document, _planned_lines(plan), as_json=as_json)


def _planned_lines(plan: Planned) -> Iterator[str]:
    router = plan.group.router
    yield f"router: haproxy ({router.policy}) at {router.base_url}/v1, now {plan.roll.router}"
    for name, state in plan.roll.replicas:
        yield f"{name}: {state}"
    for index, step in enumerate(plan.steps, start=1):
        yield f"{index:3}  {step}"


def _router_page(status: RouterStatus) -> Iterator[str]:
    """Yield the router in full; its replicas stand above it."""
    router = status.group.router
    why = f": {status.why}" if status.why else ""
    title = f"router of {router.name} is {status.word}{why}  (haproxy, {router.policy}; {status.state.detail})"
    return page.lines(title, _router_rows(status), names=page.NAMES)


def _router_rows(status: RouterStatus) -> Iterator[page.Row]:
    router = status.group.router
    yield "address", f"{router.base_url}/v1   metrics http://127.0.0.1:{router.metrics_port}/metrics"
    yield from status.routed.items()
    yield from verdict_rows(Last(watch=status.watch))
    if status.busy:
        yield "locked", f"by {status.busy}"
    yield from page.named("audit", (str(status.group.audit), *status.audit))


def router_row(seen: RouterStatus) -> tuple[str, ...]:
    """Return the router's row in the table of `status`."""
    router = seen.group.router
    serving = seen.why
    if seen.word == ServerState.READY:
        serving = f"{seen.serving} of {len(seen.group.replicas)} replicas get requests"
    return (router.name, f"{router.name} (router)", "haproxy", str(router.port), seen.word, "", "", serving)


def _router_document(status: RouterStatus) -> dict[str, Any]:
    group = status.group
    watch = verdict_document(Last(watch=status.watch))["watch"]
    return {
        "name": group.name,
        "state": status.word,
        "why": status.why or None,
        "address": f"{group.router.base_url}/v1",
        **_router(group.router),
        "replicas": status.routed,
        "locked_by": status.busy or None,
        "watch": watch,
        "audit": str(group.audit),
    }


def _router(router: Any) -> dict[str, Any]:
    return {name: getattr(router, name) for name in ("policy", "port", "metrics_port")}


_COLUMNS = (
    table.Column("NAME"), table.Column("PROFILE", 4), table.Column("ENGINE", 2), table.Column("PORT", 1),
    table.Column("STATE"), table.Column("SINCE", 3), table.Column("DRAFTING", 5), table.Column("", wraps=True),
)  # fmt: skip
_COLOURS: Mapping[Word, int] = {
    ServerState.READY: 32,
    ServerState.STARTING: 33,
    "degraded": 31,
    ServerState.EXITED: 31,
    "unknown": 35,
    ServerState.STOPPING: 33,
    ServerState.STOPPED: 2,
}


def show(servers: Sequence[Status], routers: Sequence[RouterStatus], *, one: bool, as_json: bool) -> None:
    """Print the status of all stacks and routers as a table, or of one stack, or one router with its replicas."""
    if not servers and not routers and not as_json:
        output.progress("no stack was started on this machine")
        return
    document = {"stacks": [_document(each) for each in servers]}
    if routers:
        document["routers"] = [_router_document(each) for each in routers]
    if one:
        pages = [*map(_page, servers), *map(_router_page, routers)]
        page.answer(document, chain.from_iterable(pages), as_json=as_json)
    else:
        table.answer(document, _COLUMNS, [*map(_row, servers), *map(router_row, routers)], as_json=as_json)


def _row(status: Status) -> tuple[str, ...]:
    started = status.started
    if started.profile == started.server.name:
        profile = ""
    else:
        profile = started.profile
    cause = status.cause.why if status.cause else ""
    reason = "; ".join(part for part in (status.why, cause) if part) or status.problem
    if status.changed:
        changed = "files have changed since the start"
    else:
        changed = reason
    port = str(started.server.port or "-")
    return (
        started.server.name,
        profile or started.server.name,
        started.engine,
        port,
        status.word,
        ago(status.since),
        _drafts(status),
        changed,
    )


def _drafts(status: Status) -> str:
    if not status.started.server.speculates:
        return "off"
    if status.counters and status.counters.drafts:
        length = status.counters.acceptance_length
    else:
        length = None
    if length is not None:
        return f"{length:.2f}"
    return "-"


def _page(status: Status) -> Iterator[str]:
    """Yield one stack in full."""
    word = output.coloured(status.word, _COLOURS[status.word])
    why = f": {status.why}" if status.why else ""
    how: str = status.started.engine
    if status.state.detail and status.state.detail not in status.why:
        how += f"; {status.state.detail}"
    if status.since:
        how += f", {ago(status.since)}"
    title = f"{status.started.server.name} is {word}{why}  ({how})"
    return page.lines(title, _rows(status), names=page.NAMES)


def _rows(status: Status) -> Iterator[page.Row]:
    if status.cause:
        yield "cause", status.cause.why
        yield "fix", status.cause.fix
    if status.running:
        yield from _running_rows(status)
    yield from page.named("nodes", map(_node, status.nodes))
    yield from verdict_rows(status.last)
    if status.cause:
        yield "log", f"gemmaspec logs {status.started.server.name}"
    yield "next", status.next


def _running_rows(status: Status) -> Iterator[page.Row]:
    server = status.started.server
    yield "address", f"{server.base_url}/v1   model {server.model}"
    yield "WARNING", status.problem
    yield "WARNING", status.state.starved
    yield from report_rows(status.report)
    yield from logged_rows(status.logged, status.graphs)
    if status.speedless:
        yield "WARNING", "it runs without its patches for speed (patches.speed=off)"
    for file in status.changed:
        yield "CHANGED", str(file)
    yield "drafted", _drafted(status)


def _node(node: NodeStatus) -> str:
    """Return one rank for people: where it runs, how it is, and whether it carries what rank 0 carries."""
    same = {True: "the same plan and files", False: "OTHER plan or files", None: "no report to compare"}[node.same]
    if node.plan:
        plan = f"plan {node.plan[:12]}"
    else:
        plan = "no plan known"
    if node.state.detail:
        detail = f" ({node.state.detail})"
    else:
        detail = ""
    return f"rank {node.rank} on {node.host}: {node.state.status}{detail}; {plan if not node.rank else same}"


def _drafted(status: Status) -> str | None:
    counters = status.counters
    if counters is None:
        return "unknown, because the server does not answer yet"
    if not counters.drafts:
        return None
    accepted = f"{counters.accepted} of {counters.drafted} draft tokens accepted"
    return f"{accepted}, acceptance length {counters.acceptance_length:.2f}"


def _document(status: Status) -> dict[str, Any]:
    started, server, state = status.started, status.started.server, status.state
    cause, fix = None, None
    if status.cause:
        cause, fix = status.cause.why or None, status.cause.fix
    what = {
        "name": server.name,
        "profile": started.profile,
        "engine": started.engine,
        "status": state.status,
        "state": status.word,
        "why": status.why or None,
        "cause": cause,
        "fix": fix,
        "since": status.since,
        "next": status.next,
    }
    of_engine = {"exit_code": state.exit_code, "restarts": state.restarts, "detail": state.detail}
    served = {
        "address": None if status.damaged else f"{server.base_url}/v1",
        "port": server.port or None,
        "model": server.model or None,
        "problem": status.problem or None,
    }
    runs = {
        "speculation": status.counters,
        "report": status.report,
        "attention": status.logged.backends,
        "logged": status.logged.warnings,
        "graphs": status.graphs,
        "started_by": started.by.command if started.by else "up",
        "without_speed_patches": status.speedless,
        "nodes": [_node_document(node) for node in status.nodes],
        "changed": status.changed,
    }
    return what | of_engine | served | runs | verdict_document(status.last)


def _node_document(node: NodeStatus) -> dict[str, Any]:
    return {
        "rank": node.rank,
        "host": node.host,
        "status": node.state.status,
        "exit_code": node.state.exit_code,
        "detail": node.state.detail,
        "plan_sha256": node.plan,
        "same": node.same,
    }
