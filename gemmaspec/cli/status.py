"""`gemmaspec status`."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmaspec.cli import options
from gemmaspec.errors import UsageError


def status(
    name: options.OptionalStack = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Show the pods of a cluster, using your kubectl; NAME is a profile.")
    ] = False,
    namespace: options.Namespace = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until NAME has drafted, verified and answered, whoever started it.")
    ] = False,
    timeout: options.Timeout = 1800,
    json: options.Json = False,
) -> None:
    """Show what runs: starting (with its phase), ready, degraded, exited, stopped or unknown, and since when.

    With NAME, also shows its patches as the server reports them, and how well it drafts. Exit code 5 if a file of the
    plan, the overlay or the package has changed since the start, or if a server is degraded: it drafts without CUDA
    graphs, more slowly than without a draft. Exit code 4 if gemmaspec cannot tell whether
    something runs, 1 if NAME is given and does not run.

    With the NAME of a profile that has replicas, shows each of them, the router, and the end of the audit.

    With --wait: exit code 0 once it is ready, 6 if it does not run or its start failed, 7 if it takes too long. Stops
    nothing, and waits for each replica of NAME and its router.

    With --kubernetes, reads the report of each pod. Exit code 5 if a pod does not run the plan that it was given, or
    patched another file than the other pods of that plan.
    """
    from gemmaspec.cli.text import status as text
    from gemmaspec.deploy.kept.groups import is_group
    from gemmaspec.deploy.views.group_status import replicas_status, router_status, routers_status
    from gemmaspec.deploy.views.status import status as use_case

    if wait:
        _wait(name, timeout, as_json=json)
        return
    if kubernetes:
        _pods(name, namespace, as_json=json)
        return
    if namespace:
        raise UsageError(
            "--namespace is for the pods of a cluster", hint=f"gemmaspec status --kubernetes --namespace {namespace}"
        )
    groups = routers_status() if name is None else ([router_status(name)] if is_group(name) else [])
    found = replicas_status(name) if name and groups else use_case(name)
    text.show(found, groups, one=bool(name), as_json=json)
    if any(one.changed or one.word == "degraded" for one in found):
        raise typer.Exit(5)
    words = [one.word for one in found] + [one.word for one in groups]
    if "unknown" in words:
        raise typer.Exit(4)
    if name and {"exited", "stopped"} & set(words):
        raise typer.Exit(1)


def _wait(name: str | None, timeout: float, *, as_json: bool) -> None:
    from functools import partial

    from gemmaspec.cli.target import carry_out
    from gemmaspec.deploy.kept.groups import is_group
    from gemmaspec.deploy.start import replicas
    from gemmaspec.deploy.start.wait import wait as wait_for_one

    if name is None:
        raise UsageError("--wait needs the name of a server", hint="gemmaspec status")
    grouped = is_group(name)
    verb = partial(replicas.wait_for_all if grouped else wait_for_one, name, timeout_s=timeout)
    carry_out(name, verb, replicas=grouped, as_json=as_json, verdicts=True)


def _pods(name: str | None, namespace: str | None, *, as_json: bool) -> None:
    from gemmaspec.cli.text import pods as text
    from gemmaspec.deploy.views.pods import pods

    found = pods(name, namespace=namespace)
    text.show(found, one=bool(name), as_json=as_json)
    if any(one.findings for one in found):
        raise typer.Exit(5)
    if any(one.word == "unknown" for one in found):
        raise typer.Exit(4)
    if name and not any(one.word in ("ready", "starting") for one in found):
        raise typer.Exit(1)
