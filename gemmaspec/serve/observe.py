"""What decides a start: the profile, the engine, what runs under its name, and what is on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gemmaspec.check.use_cases.lint import stop_on_errors
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.files import UnreadableFile
from gemmaspec.core.profile.command import can_be_process
from gemmaspec.core.profile.engines import uses_image
from gemmaspec.core.profile.find import is_path
from gemmaspec.core.profile.load import Loaded, load_profile, replica_of
from gemmaspec.core.profile.model import Profile
from gemmaspec.run.engine.choose import choose_engine, engine_on
from gemmaspec.run.engine.identity import image_identity
from gemmaspec.run.engine.proc import boot_id
from gemmaspec.run.engine.pulling import not_pulled_here
from gemmaspec.run.engine.server import Engine
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.fleet import hosts_of, nodes_of
from gemmaspec.run.kept.lockfile import lock_of, release_by
from gemmaspec.run.kept.models import ModelRef, hub_is_off, models_of, server_cache
from gemmaspec.run.models import access
from gemmaspec.run.models.hub_cache import is_commit
from gemmaspec.run.runtime.managed import describe
from gemmaspec.run.stack import folder as stack_files
from gemmaspec.serve import lock
from gemmaspec.serve.decide import FoundStack, Here, ModelSeen, Observed, UpRequest
from gemmaspec.serve.prepare import prepare


def load_request(request: UpRequest, loaded: Loaded | None = None) -> Loaded:
    """Return the requested profile as it is written, or the replica of it that is meant.

    `loaded`: the profile as it is written, where it was read. Raises what load_profile raises, and UsageError for a
    profile with replicas or a replica that it does not have.
    """
    if loaded is None:
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


def observe(
    request: UpRequest, loaded: Loaded, note: Callable[[str], None], *, names_code: bool = True
) -> tuple[Observed, Engine]:
    """Return what decides a start of this profile, and the engine that would start it. Changes nothing.

    `names_code`: also note whose code runs, if the profile trusts that of its models.
    Raises ProfileError for a profile that the engine cannot run, DifferencesFound if it differs from its lock,
    EnvironmentMissing if the requested engine does not answer.
    """
    locked = lock_of(loaded)
    release = release_by(loaded.profile, locked)
    stop_on_errors(loaded, note, release=release, to_measure=request.to_measure, names_code=names_code)
    before = observe_stack(loaded.profile.name, note)
    if before and (before.lives or before.state.status == "unknown"):
        runs_on = before.started.engine
    else:
        runs_on = None
    hosts = hosts_of(loaded, request.hosts)
    if nodes := nodes_of(hosts):
        engine, why = engine_on(nodes, forced=request.engine, profile=request.profile)
    else:
        engine, why = choose_engine(request.engine, runs_on=runs_on, profile=loaded.profile)
    if request.locked:
        loaded = lock.as_locked(loaded, engine.name, locked)
    server, stack, runtime = prepare(loaded, engine=engine.name, remote=engine.remote, hosts=hosts)
    models = tuple(models_of(loaded.profile))
    if hosts:
        cache = None
    else:
        cache = server_cache(loaded.profile, in_image=uses_image(engine.name))
    is_off = hub_is_off(loaded.profile)
    if runtime and describe(runtime).complete:
        runtime = None  # nothing is left to build
    image = "unknown" if hosts else _image(server.image, loaded.profile)
    observed = Observed(
        loaded=loaded,
        lock=locked,
        profile=recorded_as(request, loaded),
        engine=engine.name,
        why=why,
        remote=engine.remote,
        server=server,
        stack=stack,
        command=engine.start_command(server),
        before=before,
        same_files=not stack_files.difference(stack, server.folder),
        models=tuple(observe_models(models, cache, elsewhere=bool(hosts))),
        hub_cache=str(cache) if cache else None,
        hub_is_off=is_off,
        runtime=runtime,
        image=image,
        now=stacks.now(),
        boot_id=boot_id(),
    )
    return observed, engine


def recorded_as(request: UpRequest, loaded: Loaded) -> str:
    """Return how a record names the profile: as the user did, but a file by its whole path."""
    if is_path(request.profile):
        return str(loaded.file)
    return request.profile


def observe_stack(name: str, note: Callable[[str], None]) -> FoundStack | None:
    """Return what was last started under a name, if anything.

    A damaged record is only noted if nothing of the stack runs. Raise UnreadableFile if something does or may.
    """
    try:
        started = stacks.read_stack(name)
    except UnreadableFile as error:
        stacks.ensure_nothing_runs(name, error)
        note(f"{error.message}; writing a new one")
        return None
    if started is None:
        return None
    from gemmaspec.serve import knowngood

    measured = started.by is not None and started.by.alive
    return FoundStack(
        started=started, state=stacks.look(started), good=knowngood.find(started), being_measured=measured
    )


def observe_models(models: Iterable[ModelRef], cache: Path | None, *, elsewhere: bool = False) -> Iterator[ModelSeen]:
    """Yield each model with what this machine has of it; no network. `elsewhere`: other machines read them."""
    for model in models:
        if elsewhere:
            yield ModelSeen(model=model, here="unknown", whole=False, pinned=is_commit(model.revision))
            continue
        here: Here
        whole = False
        if model.local:
            here = "here" if model.is_here else "missing"
        elif cache is None:  # the server has a cache of its own, which this process does not see
            here = "unknown"
        else:
            commit, whole = access.in_cache(model.model, model.revision, cache=cache)
            here = "missing" if commit is None else "here"
        yield ModelSeen(model=model, here=here, whole=whole, pinned=is_commit(model.revision))


def _image(image: str | None, profile: Profile) -> Here:
    """Return whether the image is here. Raise EnvironmentMissing for one that is not, and that no registry has."""
    if image is None:
        return "here"
    try:
        is_here = image_identity(image) is not None
    except GemmaspecError:
        return "unknown"
    if is_here:
        return "here"
    if lacking := not_pulled_here(image):
        hint = lacking.hint
        if can_be_process(profile):
            hint = f"gemmaspec up {profile.name} --engine process    # or: {hint}"
        raise EnvironmentMissing(lacking.message, hint=hint)
    return "missing"
