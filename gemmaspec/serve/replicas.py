"""`up`, `restart`, `rollback`, `status --wait` and `down` of a profile with replicas."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, StartFailed, UsageError
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.replica import BIND, cores_in, devices_of, replica_name, router_of
from gemmaspec.core.rolling.steps import End, Found, Roll, RouterFound, steps
from gemmaspec.run.engine import router as routers
from gemmaspec.run.engine.choose import choose_engine
from gemmaspec.run.engine.router import RouterServer
from gemmaspec.run.engine.server import EngineName
from gemmaspec.run.kept import claims, groups, stacks
from gemmaspec.run.kept.groups import Group
from gemmaspec.run.kept.stack_lock import StartProgress, Told, owned
from gemmaspec.run.kept.stacks import Options, stack_folder
from gemmaspec.run.machine import nvidia
from gemmaspec.run.runtime.spec import ensure_router, router_program
from gemmaspec.serve import down as single_down
from gemmaspec.serve import knowngood
from gemmaspec.serve import up as single
from gemmaspec.serve.decide import FoundStack, UpRequest, decide
from gemmaspec.serve.observe import load_request, observe, observe_stack, recorded_as
from gemmaspec.serve.roll import Rolled, Rolling
from gemmaspec.serve.rollback import current, restore
from gemmaspec.serve.starting import Running
from gemmaspec.serve.wait import until_nobody_starts_it, wait


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What `up` of replicas would do."""

    group: Group
    roll: Roll
    steps: tuple[str, ...]


def up(request: UpRequest, progress: StartProgress, *, command: str = "up") -> Rolled:
    """Start all replicas of a profile and their router, or change those that run, one at a time.

    Nothing that runs is touched before what the change needs is in place. Raises what `up` of one server raises; the
    first failure ends the change, and the others go on serving.
    """
    loaded = _load(request)
    name = loaded.profile.name
    with owned(name, command, wants=request.wants, note=progress.note, timeout_s=request.timeout_s) as owner:
        request, engine = _on_one_engine(request, loaded, progress.note)
        _refuse_others(loaded)
        _ensure_gpus(loaded)
        _ensure_cores(loaded, progress.note)
        program = ensure_router()
        before = groups.read(name)
        group = _group(request, loaded, engine, program=program, before=before)
        roll = _observed(request, before, group)
        group = _with_before(group, roll, before)
        if roll.router == "absent":
            _ensure_ports(group.router)
        groups.save(group)
        told = Told(progress=progress, owner=owner)
        serve = _serving(request, loaded)
        rolling = Rolling(group=group, roll=roll, before=before, command=command, told=told, serve=serve)
        rolled = _completed(rolling)
        claims.settle(name, group.router.port)
        return rolled


def plan(request: UpRequest, note: Callable[[str], None]) -> Planned:
    """Return what `up` would do. Changes nothing."""
    loaded = _load(request)
    request, engine = _on_one_engine(request, loaded, note)
    before = groups.read(loaded.profile.name)
    group = _group(request, loaded, engine, program=router_program() or "haproxy", before=before)
    roll = _observed(request, before, group)
    return Planned(group=group, roll=roll, steps=tuple(map(str, steps(roll))))


def restart(name: str, progress: StartProgress, *, timeout_s: float, overrides: Sequence[str] = ()) -> Rolled:
    """Render the profile again and restart every replica, one at a time, with the options of its last `up`."""
    options = groups.find(name).options
    request = UpRequest.of(options, overrides=(*options.overrides, *overrides), timeout_s=timeout_s, afresh=True)
    return up(request, progress, command="restart")


def rollback(name: str, progress: StartProgress, *, timeout_s: float) -> Rolled:
    """Return every replica that the last change replaced to what it ran before, one at a time.

    Raises UsageError if nothing was replaced or what ran before is no longer kept, else as `up`.
    """
    with owned(name, "rollback", note=progress.note) as owner:
        before = groups.find(name)
        goods = {name: _good(name, key) for name, key in before.before.items() if key}
        if not goods:
            raise UsageError(
                f"the last change of {name} replaced nothing that was known to be good", hint=f"less {before.audit}"
            )
        now = {good: current(good) for good in goods}
        options = before.options_before or before.options
        group = dataclasses.replace(
            before, before=now, options=options, options_before=before.options, complete=False, stopped=False
        )
        roll = Roll(
            replicas=tuple((member, _found_for_rollback(member, goods)) for member in before.members),
            router="same" if routers.state(before.router).status == "running" else "absent",
        )
        groups.save(group)
        told = Told(progress=progress, owner=owner)

        def serve(name: str, its: StartProgress) -> Running:
            if (name, "same") in roll.replicas:  # it serves, and nobody has drained it
                return wait(name, its, timeout_s=timeout_s)
            with owned(name, "rollback", note=its.note) as owner:
                good = goods.get(name) or _last_good(name)
                return restore(good, Told(progress=its, owner=owner), timeout_s=timeout_s)

        rolling = Rolling(group=group, roll=roll, before=before, command="rollback", told=told, serve=serve)
        return _completed(rolling)


def wait_for_all(name: str, progress: StartProgress, *, timeout_s: float) -> Rolled:
    """Wait until every replica of a profile has drafted, verified and answered. Changes nothing.

    Raises StartFailed for a replica or a router that does not run, else as `status --wait` of one server.
    """
    ends = time.monotonic() + timeout_s
    until_nobody_starts_it(name, progress, timeout_s=timeout_s)
    group = groups.find(name)
    hint = group.options.command
    running = {}
    for member in group.members:
        if stacks.read_stack(member) is None:
            raise StartFailed(f"{member} has not been started", hint=hint)
        running[member] = wait(member, progress, timeout_s=max(1.0, ends - time.monotonic()))
    if routers.state(group.router).status != "running":
        raise StartFailed(f"the router of {name} is not running", hint=hint)
    return Rolled(group=group, running=running, end=End(untouched=group.members))


def down(name: str, note: Callable[[str], None] = lambda _: None) -> bool:
    """Stop the router and every replica, and return whether anything was running."""
    groups.find(name)
    with owned(name, "down", note=note):
        group = dataclasses.replace(groups.find(name), stopped=True)
        with contextlib.suppress(
            GemmaspecError
        ):  # nobody starts again what is wanted down; a full disk stops no `down`
            groups.save(group)
        was_running = routers.stop(group.router)
        if was_running:
            groups.write_audit(name, "down", "router", "stopped")
        errors: list[GemmaspecError] = []
        for replica in dict.fromkeys((*group.members, *stacks.replicas_of(name))):
            if not stacks.read_stack(replica):
                continue
            try:
                if single_down.down(replica, note):
                    was_running = True
                    groups.write_audit(name, "down", replica, "stopped")
            except GemmaspecError as error:
                errors.append(error)
                groups.write_audit(name, "down", replica, error.message)
        claims.settle(name, None)
        if errors:
            raise errors[0]
    return was_running


def _completed(rolling: Rolling) -> Rolled:
    rolled = rolling.carry_out()
    group = dataclasses.replace(rolled.group, complete=True)
    groups.save(group)
    return dataclasses.replace(rolled, group=group)


def _load(request: UpRequest) -> Loaded:
    return load_profile(request.profile, overrides=request.overrides, no_spec=request.no_spec)


def _of_replica(request: UpRequest, index: int) -> UpRequest:
    return dataclasses.replace(request, replica=index)


def _serving(request: UpRequest, loaded: Loaded) -> Callable[[str, StartProgress], Running]:
    """Return what starts, replaces or asks one replica: `up` of its stack."""
    name = loaded.profile.name
    indices = {replica_name(name, index): index for index in range(1, loaded.profile.replicas + 1)}

    def serve(name: str, progress: StartProgress) -> Running:
        if _load(request).profile != loaded.profile:
            raise GemmaspecError(
                f"{loaded.file} was changed after the first replica; all must run the same",
                hint=f"gemmaspec up {loaded.typed}",
            )
        return single.up(_of_replica(request, indices[name]), progress)

    return serve


def _on_one_engine(request: UpRequest, loaded: Loaded, note: Callable[[str], None]) -> tuple[UpRequest, EngineName]:
    """Return the request with one engine for all replicas. Raises UsageError for a daemon on another machine."""
    before = groups.read(loaded.profile.name)
    if before and not before.stopped:
        runs_on = before.options.engine
    else:
        runs_on = None
    engine, why = choose_engine(request.engine, runs_on=runs_on, profile=loaded.profile)
    if engine.remote:
        raise UsageError(
            "replicas run on this machine, but the Docker daemon is on another one",
            hint=f"gemmaspec up {loaded.typed} --engine process",
        )
    note(f"engine {why}")
    return dataclasses.replace(request, engine=engine.name), engine.name


def _refuse_others(loaded: Loaded) -> None:
    """Raise UsageError for a server that was started as something else under one of the names."""
    name = loaded.profile.name
    single_one = _live(name)
    if single_one:
        raise UsageError(f"{name} runs as one server", hint=f"gemmaspec down {name}    # then up again")
    for index in range(1, loaded.profile.replicas + 1):
        live = _live(replica_name(name, index))
        if live and live.started.replica != index:
            other = live.started.server.name
            raise UsageError(f"{other} is a server of its own, not a replica of {name}", hint=f"gemmaspec down {other}")


def _live(name: str) -> FoundStack | None:
    observed = observe_stack(name, lambda _: None)
    if observed and observed.lives:
        return observed
    return None


def _ensure_gpus(loaded: Loaded) -> None:
    """Raise EnvironmentMissing if this machine has not the GPUs that the replicas share out."""
    profile = loaded.profile
    wanted = [device for index in range(1, profile.replicas + 1) for device in devices_of(profile, index) or ()]
    if not wanted:
        return
    here = len(nvidia.gpus())
    if max(wanted) >= here:
        raise EnvironmentMissing(
            f"{profile.replicas} replicas use the GPUs {', '.join(map(str, wanted))}, but this machine has {here}",
            hint="nvidia-smi --list-gpus    # then set replicas, serve.tensor_parallel_size or devices",
        )


def _ensure_cores(loaded: Loaded, note: Callable[[str], None]) -> None:
    """Raise EnvironmentMissing for cores that this machine has not; say if the replicas will share cores."""
    profile = loaded.profile
    if not (profile.cpus or BIND in profile.env or MACHINES[profile.machine].gpus):
        note("warning: vLLM computes on the same cores for every replica; share them out with cpus: [0-3, 4-7]")
    cpus, here = profile.cpus or (), os.cpu_count() or 0
    missing = sorted(core for entry in cpus for core in cores_in(entry) if core >= here)
    if missing:
        raise EnvironmentMissing(
            f"cpus lists core {missing[0]}, but this machine has the cores 0 to {here - 1}",
            hint="lscpu --extended    # then change cpus",
        )


def _ensure_ports(router: RouterServer) -> None:
    claims.claim(router.port, router.name)
    routers.ensure_ports(router)


def _group(request: UpRequest, loaded: Loaded, engine: EngineName, *, program: str, before: Group | None) -> Group:
    profile = loaded.profile
    wanted = router_of(profile)
    # a replica's port is that of its number after the profile's own, at which the router listens
    first_port = profile.serve.port + 1
    router = RouterServer(
        name=profile.name,
        folder=stack_folder(profile.name) / "router",
        policy=wanted.policy,
        bind=profile.serve.bind,
        port=wanted.port or 0,
        metrics_port=wanted.metrics_port or 0,
        first_port=first_port,
        program=program,
    )
    group = Group(
        name=profile.name,
        options=Options.of(request, profile=recorded_as(request, loaded), engine=engine),
        replicas=tuple(range(1, profile.replicas + 1)),
        router=router,
        drain_s=float(wanted.drain_seconds),
    )
    if before:
        return dataclasses.replace(group, before=before.before, options_before=before.options_before)
    return group


def _observed(request: UpRequest, before: Group | None, group: Group) -> Roll:
    """Return what runs of the replicas, and how it differs from what should."""
    states = [(replica_name(group.name, index), _found(_of_replica(request, index))) for index in group.replicas]
    left = [name for name in stacks.replicas_of(group.name) if name not in group.members and _live(name)]
    return Roll(replicas=(*states, *((name, "surplus") for name in left)), router=_router_found(before, group.router))


def _found(request: UpRequest) -> Found:
    observed, _ = observe(request, load_request(request), lambda _: None)
    start = decide(request, observed)
    if start.joins:
        return "same"
    if observed.before and observed.before.lives:
        return "changed"
    return "absent"


def _router_found(before: Group | None, router: RouterServer) -> RouterFound:
    if before is None or routers.state(before.router).status != "running":
        return "absent"
    if before.router == router:
        return "same"
    return "changed"


def _with_before(group: Group, roll: Roll, before: Group | None) -> Group:
    """Return the group with what this change replaces, if it changes anything."""
    touched = [name for name, state in roll.replicas if state in ("changed", "absent")]
    if not touched:
        return dataclasses.replace(group, complete=False)
    was = {name: current(name) for name in touched}
    if before and not before.complete:  # one more try of a change that failed: what ran before both of them
        was, options = {**was, **before.before}, before.options_before
    else:
        options = before.options if before else None
    return dataclasses.replace(group, before=was, options_before=options, complete=False)


def _good(name: str, key: str) -> knowngood.KnownGood:
    for good in knowngood.known_goods(name):
        if good.key == key:
            return good
    raise UsageError(f"{name} is no longer kept as it was ({key})", hint=f"gemmaspec rollback --list {name}")


def _found_for_rollback(name: str, goods: dict[str, knowngood.KnownGood]) -> Found:
    alive = _live(name)
    if name in goods and current(name) != goods[name].key:
        if alive:
            return "changed"
        return "absent"
    if alive:
        return "same"
    return "absent"


def _last_good(name: str) -> knowngood.KnownGood:
    """Return what a replica ran that does not run now. Raises UsageError if it was never ready."""
    started = stacks.read_stack(name)
    good = knowngood.find(started) if started else None
    if good is None:
        raise UsageError(f"{name} does not run, and is not known to be good", hint="gemmaspec status")
    return good
