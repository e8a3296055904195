"""`gemmaspec up`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmaspec.cli import options, output
from gemmaspec.cli.target import carry_out, told_on_interrupt
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.find import is_path

if TYPE_CHECKING:
    from gemmaspec.check.use_cases.offer import ProfileOffer
    from gemmaspec.core.profile.load import Loaded
    from gemmaspec.serve.decide import UpRequest


def up(
    profile: Annotated[
        str | None, options.argument("[PROFILE]", of="up", autocompletion=options.complete_profile)
    ] = None,
    engine: options.Engine = None,
    set_: options.Set = None,
    no_spec: options.NoSpec = False,
    no_speed_patches: options.NoSpeedPatches = False,
    locked: options.Locked = False,
    hosts: Annotated[str | None, options.option("--hosts", autocompletion=options.complete_hosts)] = None,
    timeout_s: options.Timeout = 1800,
    dry_run: options.DryRun = False,
    instead_of: Annotated[str | None, options.option("--instead-of", autocompletion=options.complete_stack)] = None,
    rollback_on_failure: Annotated[bool, options.option("--rollback-on-failure/--no-rollback-on-failure")] = True,
    detach: Annotated[bool, options.option("--detach", "-d")] = False,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Start a profile and wait until it has drafted, verified and answered.

    Without a name it looks at the GPU and the memory, offers the profile to take, and asks once.
    A server that runs under its name keeps running until everything that the new start needs is in place. The replicas
    of a profile are changed one at a time, each taken out of the router first; the first failure ends it. It
    starts servers with Docker or as processes, never in a cluster: gemmaspec render --to kubernetes writes what kubectl
    deploys.
    """
    from gemmaspec.run.kept.asked_profile import load_for
    from gemmaspec.serve.decide import UpRequest

    overrides = options.overrides_of(set_, no_speed_patches=no_speed_patches)
    if not profile:
        offered = _offered(yes=yes, dry_run=dry_run)
        profile, overrides = offered.profile, (*offered.overrides, *overrides)
    request = UpRequest(
        **options.given(
            profile=profile,
            engine=engine,
            overrides=overrides,
            no_spec=no_spec,
            locked=locked,
            hosts=hosts,
            timeout_s=timeout_s,
            rollback_on_failure=rollback_on_failure,
        )
    )
    name = Path(profile).stem if is_path(profile) else profile
    loaded = load_for("up", request.profile, overrides=request.overrides, no_spec=request.no_spec)
    has_replicas = loaded.profile.replicas > 1
    if instead_of and (detach or has_replicas):
        raise UsageError(
            "--instead-of starts one server and waits for it: not with --detach or replicas",
            hint=f"gemmaspec up {profile} --instead-of {instead_of}",
        )
    if has_replicas:
        _up_replicas(name, request, dry_run=dry_run, detach=detach, json=json)
        return
    if dry_run:
        _dry_run(request, loaded, instead_of=instead_of, json=json)
        return
    _up_one(name, request, loaded, instead_of=instead_of, detach=detach, json=json)


def _dry_run(request: UpRequest, loaded: Loaded, *, instead_of: str | None, json: bool) -> None:
    """Print what the start of one server would do."""
    from gemmaspec.cli.text import dry_run as text
    from gemmaspec.serve.dry_run import dry_run
    from gemmaspec.serve.instead import dry_run_instead

    if instead_of:
        plan = dry_run_instead(instead_of, request, output.progress, loaded)
    else:
        plan = dry_run(request, output.progress, loaded)
    text.dry_run(plan, as_json=json)


def _up_one(name: str, request: UpRequest, loaded: Loaded, *, instead_of: str | None, detach: bool, json: bool) -> None:
    """Start one server."""
    if instead_of:
        from gemmaspec.serve.instead import up_instead

        carry_out(name, partial(up_instead, instead_of, request, loaded=loaded), as_json=json)
        return
    from gemmaspec.serve import up as use_case
    from gemmaspec.serve.spot import measure_if_asked

    measure_if_asked(request, output.progress, loaded)
    if detach:
        _up_detached(name, request, loaded, json=json)
        return
    carry_out(name, partial(use_case.up, request, loaded=loaded), as_json=json)


def _up_detached(name: str, request: UpRequest, loaded: Loaded, *, json: bool) -> None:
    """Start one server, and print how to follow its start."""
    from gemmaspec.cli.text import progress as progress_of
    from gemmaspec.cli.text import stack
    from gemmaspec.run.kept import stacks
    from gemmaspec.run.kept.verdicts import last_verdicts
    from gemmaspec.serve import up as use_case

    with told_on_interrupt(name), progress_of.start_progress() as progress:
        started = use_case.up_detached(request, progress, loaded)
    stack.detached(started, as_json=json, last=last_verdicts(started, stacks.engine_of(started)))


def _offered(*, yes: bool, dry_run: bool) -> ProfileOffer:
    """Return what is offered for this machine, if it is taken."""
    from gemmaspec.check.use_cases.offer import offer

    offered = offer()
    for line in offered.lines:
        output.progress(line)
    if yes or dry_run:
        return offered
    if not sys.stdin.isatty():
        raise UsageError("without a terminal nothing can be asked; name the profile", hint=offered.command)
    if not typer.confirm(
        output.visible(f"Start {offered.profile}? (--dry-run shows what that does)"), default=True, err=True
    ):
        raise UsageError("nothing was started", hint="gemmaspec profile list")
    return offered


def _up_replicas(name: str, request: UpRequest, *, dry_run: bool, detach: bool, json: bool) -> None:
    """Start or change the replicas of a profile."""
    from gemmaspec.cli.text import replicas as text
    from gemmaspec.serve import replicas

    if dry_run:
        text.planned(replicas.plan(request, output.progress), as_json=json)
        return
    if detach:
        raise UsageError(
            "--detach is for one server: replicas are started one after another, and each has to answer first",
            hint=f"gemmaspec up {request.profile} &",
        )
    carry_out(name, partial(replicas.up, request), as_json=json)
