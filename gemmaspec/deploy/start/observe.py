"""What decides a start: the profile, the engine, what runs under its name, and what is on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from gemmaspec.deploy.checks.lint import stop_on_errors
from gemmaspec.deploy.kept import stacks
from gemmaspec.deploy.kept.fleet import hosts_of, nodes_of
from gemmaspec.deploy.kept.models import ModelRef, hub_is_off, models_of, server_cache
from gemmaspec.deploy.kept.owner import this_command
from gemmaspec.deploy.start import speedless
from gemmaspec.deploy.start.decide import FoundStack, Here, ModelSeen, Observed, UpRequest
from gemmaspec.deploy.start.prepare import prepare, runtime_spec
from gemmaspec.engine.choose import choose_engine, engine_of_nodes
from gemmaspec.engine.identity import image_identity
from gemmaspec.engine.server import Engine
from gemmaspec.errors import GemmaspecError, UsageError
from gemmaspec.files import UnreadableFile
from gemmaspec.fleet.hosts import Host
from gemmaspec.models import access
from gemmaspec.models.hub_cache import is_commit
from gemmaspec.profile.engines import ENGINES, uses_image
from gemmaspec.profile.find import is_path
from gemmaspec.profile.load import Loaded, load_profile, replica_of
from gemmaspec.runtime.managed import describe
from gemmaspec.runtime.spec import RuntimeSpec
from gemmaspec.stack import folder as stack_files


def has_replicas(request: UpRequest) -> bool:
    """Return whether a request means a profile with replicas.

    Raises UsageError for the name of a replica, and what load_profile raises.
    """
    try:
        loaded = load_profile(request.profile, overrides=request.overrides, no_spec=request.no_spec)
    except GemmaspecError:
        from gemmaspec.deploy.kept.groups import need_profile  # a dry run stays quick without it

        need_profile(request.profile, "up")
        raise
    return loaded.profile.replicas > 1


def load_request(request: UpRequest) -> Loaded:
    """Return the requested profile as it is written, or the replica of it that is meant.

    Raises what load_profile raises, and UsageError for a profile with replicas or a replica that it does not have.
    """
    loaded = load_profile(request.profile, overrides=request.overrides, no_spec=request.no_spec)
    name, count = loaded.profile.name, loaded.profile.replicas
    if request.replica is None and count == 1:
        return loaded
    if request.replica is None:
        raise UsageError(
            f"{name} has {count} replicas, and this command works on one server",
            hint="add --set replicas=1 --set router=    # one server of this profile, on serve.port",
        )
    if count == 1 or request.replica > count:
        raise UsageError(f"{name} has no replica {request.replica} any more", hint=f"gemmaspec up {loaded.typed}")
    return replica_of(loaded, request.replica)


def without_speed(request: UpRequest) -> UpRequest:
    """Return the same request without patches for speed."""
    return dataclasses.replace(request, overrides=(*request.overrides, speedless.OFF))


def observe(request: UpRequest, loaded: Loaded, note: Callable[[str], None]) -> tuple[Observed, Engine]:
    """Return what decides a start of this profile, and the engine that would start it. Changes nothing.

    Raises ProfileError for a profile that the engine cannot run, DifferencesFound if it differs from its lock,
    EnvironmentMissing if the requested engine does not answer.
    """
    stop_on_errors(loaded, note, to_measure=request.to_measure)
    before = observe_stack(loaded.profile.name, note)
    runs_on = before.started.engine if before and (before.lives or before.state.status == "unknown") else None
    hosts = hosts_of(loaded, request.hosts)
    if hosts:
        engine, why = _engine_of(hosts, request)
    else:
        engine, why = choose_engine(request.engine, runs_on=runs_on, profile=loaded.profile)
    if request.locked:
        from gemmaspec.deploy.start import lock

        loaded = lock.as_locked(loaded, engine.name)
    server, stack = prepare(loaded, engine=engine.name, remote=engine.remote, hosts=hosts)
    cache = None if hosts else server_cache(loaded.profile, in_image=uses_image(engine.name))
    observed = Observed(
        loaded=loaded,
        profile=str(loaded.file) if is_path(request.profile) else request.profile,
        engine=engine.name,
        why=why,
        remote=engine.remote,
        server=server,
        stack=stack,
        command=engine.start_command(server),
        before=before,
        same_files=not stack_files.difference(stack, server.folder),
        models=tuple(observe_models(models_of(loaded.profile), cache, elsewhere=bool(hosts))),
        hub_cache=str(cache) if cache else None,
        hub_is_off=hub_is_off(loaded.profile),
        runtime=None if uses_image(engine.name) else _runtime_to_build(loaded),
        image="unknown" if hosts else _image(server.image),
        now=stacks.now(),
        by=this_command(request.measured_by) if request.measured_by else None,
    )
    return observed, engine


def observe_stack(name: str, note: Callable[[str], None]) -> FoundStack | None:
    """Return what was last started under a name, if anything.

    A damaged record is only noted if nothing of the stack runs. Raises UnreadableFile if something does, or if that
    is unknown.
    """
    try:
        started = stacks.read_stack(name)
    except UnreadableFile as error:
        stacks.ensure_nothing_runs(name, error)
        note(f"{error.message}; writing a new one")
        return None
    if started is None:
        return None
    from gemmaspec.deploy.start import knowngood

    measured = started.by is not None and started.by.alive
    return FoundStack(
        started=started, state=stacks.look(started), good=knowngood.find(started), being_measured=measured
    )


def _engine_of(hosts: Sequence[Host], request: UpRequest) -> tuple[Engine, str]:
    """Return the engine of a server on several machines, and why it is used."""
    if request.engine and not ENGINES[request.engine].spans_machines:
        raise UsageError(
            f"{request.profile} runs on several machines, and --engine {request.engine} starts on this one alone",
            hint=f"gemmaspec up {request.profile}",
        )
    ranks = ", ".join(f"{host.name} (rank {rank})" for rank, host in enumerate(hosts))
    return engine_of_nodes(nodes_of(hosts)), f"docker: on {len(hosts)} machines: {ranks}"


def observe_models(models: Iterable[ModelRef], cache: Path | None, *, elsewhere: bool = False) -> Iterator[ModelSeen]:
    """Yield each model with what this machine has of it; no network. `elsewhere`: other machines read them."""
    for model in models:
        if elsewhere:
            yield ModelSeen(model=model, here="unknown", whole=False, pinned=is_commit(model.revision))
            continue
        whole = bool(cache) and not model.local and access.is_whole(model.model, model.revision, cache=cache)
        here: Here = "here" if _is_here(model, cache) else "missing" if model.local or cache else "unknown"
        yield ModelSeen(model=model, here=here, whole=whole, pinned=is_commit(model.revision))


def _is_here(model: ModelRef, cache: Path | None) -> bool:
    if model.local:
        return model.is_here
    return bool(cache and access.cached_commit(model.model, model.revision, cache=cache))


def _runtime_to_build(loaded: Loaded) -> RuntimeSpec | None:
    if loaded.profile.runtime.python:
        return None
    spec = runtime_spec(loaded)
    return None if describe(spec).complete else spec


def _image(image: str | None) -> Here:
    if image is None:
        return "here"
    with contextlib.suppress(GemmaspecError):
        return "here" if image_identity(image) else "missing"
    return "unknown"
