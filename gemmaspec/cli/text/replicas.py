"""Print what happens to replicas, and how they and their router are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemmaspec.cli import output

if TYPE_CHECKING:
    from gemmaspec.deploy.start.replicas import Planned
    from gemmaspec.deploy.start.roll import Rolled
    from gemmaspec.deploy.views.group_status import RouterStatus


def rolled(result: Rolled, *, as_json: bool) -> None:
    """Print the result of `up`, `restart` and `rollback` of replicas."""
    router, end = result.group.router, result.end
    models = [one.started.server.model for one in result.running.values()]
    if as_json:
        output.json_data(
            {
                "ok": True,
                "name": result.group.name,
                "address": f"{router.base_url}/v1",
                "model": models[0] if models else None,
                "router": _router(router),
                "replicas": list(result.group.members),
                "changed": list(end.changed),
                "unchanged": list(end.untouched),
                "audit": str(result.group.audit),
            }
        )
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
    for name, found in plan.roll.replicas:
        output.told(f"{name}: {found}")
    for index, step in enumerate(plan.steps, start=1):
        output.told(f"{index:3}  {step}")


def router_lines(one: RouterStatus) -> None:
    """Print the router below its replicas."""
    router = one.group.router
    why = f": {one.why}" if one.why else ""
    output.told(f"router of {router.name} is {one.word}{why}  (haproxy, {router.policy}; {one.state.detail})")
    output.told(f"  address   {router.base_url}/v1   metrics http://127.0.0.1:{router.metrics_port}/metrics")
    for name, said in one.routed.items():
        output.told(f"  {name:<9} {said}")
    if one.busy:
        output.told(f"  locked    by {one.busy}")
    output.told(f"  audit     {one.group.audit}")
    for line in one.audit:
        output.told(f"            {line}")


def router_row(one: RouterStatus) -> tuple[str, ...]:
    """Return the router's row in the table of `status`."""
    router = one.group.router
    serving = f"{one.serving} of {len(one.group.replicas)} replicas get requests" if one.word == "ready" else one.why
    return (router.name, f"{router.name} (router)", "haproxy", str(router.port), one.word, "", "", serving)


def documents(found: Sequence[RouterStatus]) -> list[dict[str, Any]]:
    """Return the routers as JSON."""
    return [
        {
            "name": one.group.name,
            "state": one.word,
            "why": one.why or None,
            "address": f"{one.group.router.base_url}/v1",
            **_router(one.group.router),
            "replicas": one.routed,
            "locked_by": one.busy or None,
            "audit": str(one.group.audit),
        }
        for one in found
    ]


def _router(router: Any) -> dict[str, Any]:
    return {name: getattr(router, name) for name in ("policy", "port", "metrics_port")}
