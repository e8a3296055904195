"""What decides a start: the profile, the engine, what runs under its name, and what is on this machine.

Patches for speed that may be why a start has failed, or why a server goes wrong.

`up --dry-run`: what `up` would do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec.check.here.lint import costly, stop_on_errors
from gemmaspec.core import data
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, StartFailed, UsageError
from gemmaspec.core.files import UnreadableFile
from gemmaspec.core.finding import Finding
from gemmaspec.core.patching.bugs import Choices
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.command import can_be_process
from gemmaspec.core.profile.find import is_path, uses_image
from gemmaspec.core.profile.load import Loaded, load_profile, replica_of
from gemmaspec.core.profile.model import Profile
from gemmaspec.run.engine.choose import choose_engine, engine_on
from gemmaspec.run.engine.identity import image_identity
from gemmaspec.run.engine.image import not_pulled_here
from gemmaspec.run.engine.proc import boot_id
from gemmaspec.run.engine.server import Engine, Server
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.attention import graphs_ahead
from gemmaspec.run.kept.fleet import hosts_of, nodes_of
from gemmaspec.run.kept.models import ModelRef, hub_is_off, lock_of, models_of, release_by, release_of, server_cache
from gemmaspec.run.models import access
from gemmaspec.run.models.hub import is_commit
from gemmaspec.run.ready.failures import find_cause
from gemmaspec.run.ready.known_failures import ENVIRONMENT
from gemmaspec.run.ready.logline import message_of
from gemmaspec.run.runtime.managed import describe
from gemmaspec.run.stack import folder as stack_files
from gemmaspec.run.stack.speed import speed_choice
from gemmaspec.serve import lock
from gemmaspec.serve.ahead import Ahead, ahead
from gemmaspec.serve.decide import FoundStack, Here, ModelSeen, Observed, Start, UpRequest, decide
from gemmaspec.serve.prepare import prepare

OFF: Final = "patches.speed=off"
_LINES: Final = 4000
_APPLIED: Final = re.compile(r"gemmaspec: patch (?P<patch>[a-z0-9-]{1,80}): applies\b")
_FRAME: Final = re.compile(r'  File "[^"]{0,400}?(?P<path>vllm/[^"]{1,300}\.py)", line \d')
_OF_KERNELS: Final = re.compile(
    r"CUDA error|illegal memory|device-side assert|misaligned|triton|kernel|shared memory", re.IGNORECASE
)
"""What an error says that a changed kernel can cause, wherever it is raised: kernels run later than they are called."""


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """The patches for speed of a start that failed."""

    patches: tuple[str, ...]
    named: tuple[str, ...]
    """Those whose code is in a traceback of the log."""

    def __str__(self) -> str:
        if self.named:
            return f"its log has a traceback through code of {', '.join(self.named)}"
        names = ", ".join(self.patches)
        return f"{names} {'was' if len(self.patches) == 1 else 'were'} in, and may be the cause"


def speed_files(plan: str) -> dict[str, frozenset[str]]:
    """Return the patches for speed in the text of a plan.json, each with the files that it changes."""
    try:
        rows = [load for load in json.loads(plan)["patches"] if load.get("purpose") == "speed"]
        return {
            str(row["id"]): frozenset(str(file["path"]) for variant in row["variants"] for file in variant["files"])
            for row in rows
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def suspicion(files: Mapping[str, str], lines: Sequence[str], error: GemmaspecError) -> Suspicion | None:
    """Return the patches for speed that may be why a start failed; None if there are none, or something else is.

    `files` are the stack's, `lines` its log; without a log, every patch of the plan counts as applied.
    """
    planned = speed_files(files.get("plan.json", ""))
    if not planned or not isinstance(error, StartFailed) or error.exit_code == ENVIRONMENT:
        return None
    messages = [message_of(line) for line in lines]
    applied = {match["patch"] for text in messages if (match := _APPLIED.match(text))}
    inside = tuple(name for name in planned if name in applied or not lines)
    if not inside:
        return None
    seen = {match["path"] for text in messages if (match := _FRAME.match(text))}
    named = tuple(name for name in inside if planned[name] & seen)
    cause = find_cause(lines)
    if not named and cause and not cause.failure.general and not _OF_KERNELS.search(cause.message):
        return None
    return Suspicion(patches=inside, named=named)


def log_of(engine: Engine, server: Server) -> list[str]:
    """Return the end of a server's log; nothing if it cannot be read."""
    try:
        return list(engine.logs(server, tail=_LINES))
    except (GemmaspecError, OSError):
        return []


def in_report(report: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the patches for speed that a running server has."""
    rows = report.get("patches") if report else None
    speed = [row for row in rows or () if isinstance(row, dict) and row.get("purpose") == "speed"]
    return tuple(sorted(str(row.get("patch")) for row in speed if row.get("state") in ("applies", "applied")))


def has_replicas(request: UpRequest) -> bool:
    """Return whether a request means a profile with replicas.

    Raises UsageError for the name of a replica, and what load_profile raises.
    """
    try:
        loaded = load_profile(request.profile, overrides=request.overrides, no_spec=request.no_spec)
    except GemmaspecError:
        from gemmaspec.run.kept.groups import need_profile  # a dry run stays quick without it

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


def observe(request: UpRequest, loaded: Loaded, note: Callable[[str], None]) -> tuple[Observed, Engine]:
    """Return what decides a start of this profile, and the engine that would start it. Changes nothing.

    Raises ProfileError for a profile that the engine cannot run, DifferencesFound if it differs from its lock,
    EnvironmentMissing if the requested engine does not answer.
    """
    locked = lock_of(loaded)
    release = release_by(loaded.profile, locked)
    stop_on_errors(loaded, note, release=release, to_measure=request.to_measure)
    before = observe_stack(loaded.profile.name, note)
    runs_on = before.started.engine if before and (before.lives or before.state.status == "unknown") else None
    hosts = hosts_of(loaded, request.hosts)
    if nodes := nodes_of(hosts):
        engine, why = engine_on(nodes, forced=request.engine, profile=request.profile)
    else:
        engine, why = choose_engine(request.engine, runs_on=runs_on, profile=loaded.profile)
    if request.locked:
        loaded = lock.as_locked(loaded, engine.name, locked)
    server, stack, runtime = prepare(loaded, engine=engine.name, remote=engine.remote, hosts=hosts)
    models = tuple(models_of(loaded.profile))
    cache = None if hosts else server_cache(loaded.profile, in_image=uses_image(engine.name))
    is_off = hub_is_off(loaded.profile)
    observed = Observed(
        loaded=loaded,
        lock=locked,
        profile=str(loaded.file) if is_path(request.profile) else request.profile,
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
        runtime=None if runtime is None or describe(runtime).complete else runtime,
        image="unknown" if hosts else _image(server.image, loaded.profile),
        now=stacks.now(),
        boot_id=boot_id(),
    )
    return observed, engine


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
        asks = cache is not None and not model.local
        commit, whole = access.in_cache(model.model, model.revision, cache=cache) if asks else (None, False)
        is_here = model.is_here if model.local else commit is not None
        here: Here = "here" if is_here else "missing" if model.local or cache else "unknown"
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


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What `up` would do, for people."""

    start: Start
    ahead: Ahead | None
    """Image, runtime and models that are not on this machine, and how long it takes; None if it runs already."""
    graphs: tuple[str, ...]
    """The CUDA graphs that it would lack, and what brings them back."""
    speed: Choices
    """Patches for speed that it would try; the launcher leaves out those that do not fit exactly."""
    costs: tuple[Finding, ...] = ()
    """What lint knows of its speed and memory."""


def dry_run(request: UpRequest, note: Callable[[str], None]) -> DryRun:
    """Return what `up` would do. Changes nothing; asks the engine, and for the sizes of what is missing.

    Raises DifferencesFound where `up` would refuse what its lock does not pin.
    """
    observed, _ = observe(request, load_request(request), note)
    start, profile = decide(request, observed), observed.loaded.profile
    if start.locked_runtime and not start.runtime:  # one that is still to be built gets what the lock pins
        lock.check_runtime(observed.loaded, start.locked_runtime, start.server)
    return DryRun(
        start=start,
        ahead=None if start.joins else ahead(start),
        graphs=graphs_ahead(profile, elsewhere=bool(start.server.nodes)),
        speed=speed_choice(profile, Shelf(data.patch_folders())),
        costs=costly(observed.loaded, release=release_of(observed.loaded)),
    )
