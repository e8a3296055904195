"""`gemmaspec status`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from gemmaspec.cli import options
from gemmaspec.core.errors import UsageError
from gemmaspec.core.server_state import MEANINGS, ServerState
from gemmaspec.core.waiting import WAITS

_PATIENCE_S: Final = 60.0
"""Seconds after which a slow daemon is asked nothing more; what it did not say by then is not known."""


def status(
    name: options.OptionalStack = None,
    kubernetes: Annotated[bool, options.option("--kubernetes")] = False,
    namespace: options.Namespace = None,
    wait: Annotated[bool, options.option("--wait")] = False,
    timeout: options.Timeout = 1800,
    json: options.Json = False,
) -> None:
    """Show what runs: starting (with its phase), ready, degraded, exited, stopping, stopped or unknown, and since
    when.

    With NAME, also shows its patches as the server reports them, and how well it drafts. Exit code 5 if a file of the
    plan, the overlay or the package has changed since the start, or if something is degraded: a server that drafts
    without CUDA graphs, more slowly than without a draft, or a router that sends no request to a replica that serves
    while no command works on it. Exit code 4 if gemmaspec cannot tell whether something runs, 1 if NAME is given and
    does not run.

    With the NAME of a profile that has replicas, shows each of them, the router, and the end of the audit.

    With --wait: exit code 0 once it is ready, 6 if it does not run or its start failed, 7 if it takes too long. Stops
    nothing, and waits for each replica of NAME and its router.

    With --kubernetes, reads the report of each pod. Exit code 5 if a pod does not run the plan that it was given, or
    patched another file than the other pods of that plan.
    """
    from gemmaspec.cli.text import replicas as text
    from gemmaspec.look.group_status import RouterStatus, replicas_status, router_status, routers_status
    from gemmaspec.look.status import status as use_case
    from gemmaspec.run.kept.groups import is_group

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
    groups: list[RouterStatus] = []
    with WAITS.at_most(_PATIENCE_S):
        if name is None:
            groups = list(routers_status())
        elif is_group(name):
            groups = [router_status(name)]
        if name and groups:
            servers = replicas_status(name)
        else:
            servers = use_case(name)
    text.show(servers, groups, one=bool(name), as_json=json)
    words = [server.word for server in servers] + [group.word for group in groups]
    codes = {MEANINGS[word].exit_code for word in words}
    if any(server.changed for server in servers):
        codes.add(5)
    if name is None:  # of all servers, one that does not run is no failure
        codes.discard(1)
    if worst := max(codes, default=0):
        raise typer.Exit(worst)


def _wait(name: str | None, timeout: float, *, as_json: bool) -> None:
    from functools import partial

    from gemmaspec.cli.target import carry_out
    from gemmaspec.run.kept.groups import is_group
    from gemmaspec.serve import replicas
    from gemmaspec.serve.wait import wait as wait_for_one

    if name is None:
        raise UsageError("--wait needs the name of a server", hint="gemmaspec status")
    verb = replicas.wait_for_all if is_group(name) else wait_for_one
    carry_out(name, partial(verb, name, timeout_s=timeout), as_json=as_json, verdicts=True)


def _pods(name: str | None, namespace: str | None, *, as_json: bool) -> None:
    from gemmaspec.cli.text import pods as text
    from gemmaspec.look.pods import pods

    shown = pods(name, namespace=namespace)
    text.show(shown, one=bool(name), as_json=as_json)
    if any(pod.findings for pod in shown):
        raise typer.Exit(5)
    if any(pod.word == "unknown" for pod in shown):
        raise typer.Exit(4)
    if name and not any(pod.word in (ServerState.READY, ServerState.STARTING) for pod in shown):
        raise typer.Exit(1)
