"""Print `status`, of all stacks or of one in full, and what happens to replicas and their router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemmaspec.cli import output
from gemmaspec.cli.text import table
from gemmaspec.cli.text.stack import ago, report_lines, verdict_document, verdict_lines
from gemmaspec.run.kept.verdicts import Last

if TYPE_CHECKING:
    from gemmaspec.look.group_status import RouterStatus
    from gemmaspec.look.status import NodeStatus, Status
    from gemmaspec.serve.replicas import Planned
    from gemmaspec.serve.roll import Rolled


def rolled(result: Rolled, *, as_json: bool) -> None:
    """Print the result of `up`, `restart` and `rollback` of replicas."""
    router, end = result.group.router, result.end
    models = [replica.started.server.model for replica in result.running.values()]
    if as_json:
        served = {"address": f"{router.base_url}/v1", "model": models[0] if models else None, "router": _router(router)}
        changes = {"changed": list(end.changed), "unchanged": list(end.untouched), "audit": str(result.group.audit)}
        name, members = result.group.name, list(result.group.members)
        output.json_data({"ok": True, "name": name, **served, "replicas": members, **changes})
        return
    count = len(result.group.replicas)
    output.told(f"{result.group.name} is ready: {count} replicas behind haproxy ({router.policy})")
    output.told(f"  address   {router.base_url}/v1{f'   model {models[0]}' if models else ''}")
    output.told(f"  changed   {', '.join(end.changed) or 'nothing'}")
    if end.untouched:
        output.told(f"  same      {', '.join(end.untouched)}")
    output.told(f"  audit     {result.group.audit}")


def planned(plan: Planned, *, as_json: bool) -> None:
    """Print what `up --dry-run` would do to replicas."""
    if as_json:
        states = dict(plan.roll.replicas)
        output.json_data({"ok": True, "router": plan.roll.router, "replicas": states, "steps": list(plan.steps)})
        return
    router = plan.group.router
    output.told(f"router: haproxy ({router.policy}) at {router.base_url}/v1, now {plan.roll.router}")
    for name, state in plan.roll.replicas:
        output.told(f"{name}: {state}")
    for index, step in enumerate(plan.steps, start=1):
        output.told(f"{index:3}  {step}")


def router_lines(status: RouterStatus) -> None:
    """Print the router below its replicas."""
    router = status.group.router
    why = f": {status.why}" if status.why else ""
    output.told(f"router of {router.name} is {status.word}{why}  (haproxy, {router.policy}; {status.state.detail})")
    output.told(f"  address   {router.base_url}/v1   metrics http://127.0.0.1:{router.metrics_port}/metrics")
    for name, word in status.routed.items():
        output.told(f"  {name:<9} {word}")
    output.told(*verdict_lines(Last(watch=status.watch)))
    if status.busy:
        output.told(f"  locked    by {status.busy}")
    output.told(f"  audit     {status.group.audit}")
    for line in status.audit:
        output.told(f"            {line}")


def router_row(seen: RouterStatus) -> tuple[str, ...]:
    """Return the router's row in the table of `status`."""
    router = seen.group.router
    serving = (
        f"{seen.serving} of {len(seen.group.replicas)} replicas get requests" if seen.word == "ready" else seen.why
    )
    return (router.name, f"{router.name} (router)", "haproxy", str(router.port), seen.word, "", "", serving)


def documents(router: Sequence[RouterStatus]) -> list[dict[str, Any]]:
    """Return the routers as JSON."""
    return [_router_document(status) for status in router]


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
_COLOURS = {
    "ready": 32,
    "starting": 33,
    "degraded": 31,
    "exited": 31,
    "unknown": 35,
    "stopping": 33,
    "stopped": 2,
}


def show(servers: Sequence[Status], routers: Sequence[RouterStatus], *, one: bool, as_json: bool) -> None:
    """Print the status of all stacks and routers as a table, or of one stack, or one router with its replicas."""
    if as_json:
        shown = {"stacks": [_document(each) for each in servers]}
        output.json_data({**shown, "routers": documents(routers)} if routers else shown)
    elif not servers and not routers:
        output.progress("no stack was started on this machine")
    elif one:
        for each in servers:
            _whole(each)
        for router in routers:
            router_lines(router)
    else:
        table.show(_COLUMNS, [*map(_row, servers), *map(router_row, routers)])


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


def _whole(status: Status) -> None:
    server = status.started.server
    why = f": {status.why}" if status.why else ""
    since = f", {ago(status.since)}" if status.since else ""
    if status.state.detail and status.state.detail not in status.why:
        detail = f"; {status.state.detail}"
    else:
        detail = ""
    word = output.coloured(status.word, _COLOURS[status.word])
    output.told(f"{server.name} is {word}{why}  ({status.started.engine}{detail}{since})")
    if status.cause and status.cause.why:
        output.told(f"  cause     {status.cause.why}")
    if status.cause and status.cause.fix:
        output.told(f"  fix       {status.cause.fix}")
    if status.running:
        output.told(f"  address   {server.base_url}/v1   model {server.model}")
        for warning in filter(None, (status.problem, status.state.starved)):
            output.told(f"  WARNING   {warning}")
        report_lines(status.report)
        if status.logged.backends:
            output.told(f"  attention {', '.join(status.logged.backends)} (logged)")
        for line in (*filter(None, (status.graphs,)), *status.logged.warnings):
            output.told(f"  WARNING   {line}")
        if status.speedless:
            output.told("  WARNING   it runs without its patches for speed (patches.speed=off)")
        for file in status.changed:
            output.told(f"  CHANGED   {file}")
        _drafting(status)
    for node in status.nodes:
        output.told(f"  {'nodes' if not node.rank else '':<9} {_node(node)}")
    output.told(*verdict_lines(status.last))
    if status.cause:
        output.told(f"  log       gemmaspec logs {server.name}")
    if status.next:
        output.told(f"  next      {status.next}")


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


def _drafting(status: Status) -> None:
    counters = status.counters
    if counters and counters.drafts:
        accepted = f"{counters.accepted} of {counters.drafted} draft tokens accepted"
        output.told(f"  drafted   {accepted}, acceptance length {counters.acceptance_length:.2f}")
    elif counters is None:
        output.told("  drafted   unknown, because the server does not answer yet")


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
