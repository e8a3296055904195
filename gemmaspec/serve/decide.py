"""What a start will do, decided from observations: a value that can be printed and carried out step by step.

Nothing in here asks the disk, the network or a clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, ProfileError
from gemmaspec.core.lock.document import Lock
from gemmaspec.core.profile.engines import other_engines, uses_image
from gemmaspec.core.profile.load import Loaded
from gemmaspec.run.engine.server import EngineName, Server, State
from gemmaspec.run.kept.models import ModelRef
from gemmaspec.run.kept.stack_lock import Caller
from gemmaspec.run.kept.stacks import Options, Started
from gemmaspec.run.runtime.spec import RuntimeSpec
from gemmaspec.run.stack.build import Stack

if TYPE_CHECKING:
    from gemmaspec.serve.knowngood import KnownGood

Here = Literal["here", "missing", "unknown"]
"""Whether something is on this machine; `unknown` for what lies in a container's volume or on another machine."""

Offline = Literal["no", "yes", "if the Hub does not answer"]
"""Whether the server starts without the Hugging Face Hub (HF_HUB_OFFLINE)."""


@dataclass(frozen=True, kw_only=True)
class UpRequest(Options):
    """The request of `up` or `restart`."""

    timeout_s: float = 1800.0
    afresh: bool = False
    """Restart it even if it already runs unchanged."""
    rollback_on_failure: bool = True
    """Restart the replaced stack if this one does not become ready."""
    measured_by: Caller | None = None
    """The bench or tune that asks, for a server that is started only to be timed: it is not kept as known good."""
    any_text: bool = False
    """Whether an unreadable first answer is accepted, as dummy weights give it."""

    @property
    def to_measure(self) -> bool:
        """Whether it is started only to be timed."""
        return bool(self.measured_by)

    @property
    def wants(self) -> str:
        """The request as text: two requests with the same text can share one start."""
        flags = (self.no_spec, self.engine, self.locked, self.replica, self.to_measure, self.any_text, self.hosts)
        return repr((self.profile, self.overrides, *flags))


@dataclass(frozen=True, kw_only=True)
class FoundStack:
    """A stack as it was found before the start."""

    started: Started
    state: State
    good: KnownGood | None = None
    """The known good stack that it is, if it became ready."""
    being_measured: bool = False
    """Whether the bench or tune that started it still runs."""

    @property
    def lives(self) -> bool:
        """Whether its server is there, ready or not."""
        return self.state.lives


@dataclass(frozen=True, kw_only=True)
class ModelSeen:
    """Target or draft, and whether it is on this machine."""

    model: ModelRef
    here: Here
    whole: bool
    """Whether all of it is in the cache of the Hub."""
    pinned: bool
    """Whether it is named by a commit, which nothing can change."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Everything that decides a start."""

    loaded: Loaded
    """The requested profile, pinned by its lock if that was requested too."""
    lock: Lock | ProfileError | None
    """The profile's lock, or why it cannot be read."""
    profile: str
    """The profile as the record names it: a name, or the absolute path of its file."""
    engine: EngineName
    why: str
    remote: bool
    """Whether the engine's servers run on another machine."""
    server: Server
    stack: Stack
    command: tuple[str, ...]
    """The argv that the engine would run."""
    before: FoundStack | None
    """What was last started under this name, if anything."""
    same_files: bool
    """Whether the files on disk equal those rendered now."""
    models: tuple[ModelSeen, ...]
    hub_cache: str | None
    """The server's Hugging Face cache; None if it is not visible from this machine."""
    hub_is_off: bool
    """Whether the profile or the shell has disabled the Hub."""
    runtime: RuntimeSpec | None
    """The environment to build; None if it exists, is the user's own, or belongs to an image."""
    image: Here
    now: float
    """Seconds since 1970."""
    boot_id: str = ""
    """This boot of this machine."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Everything that will happen."""

    engine: EngineName
    why: str
    remote: bool
    started: Started
    """The record of this start."""
    files: Mapping[str, str]
    command: tuple[str, ...]
    environment: tuple[str, ...]
    """Names of the variables that the start sets or passes to the server; never their values."""
    joins: bool
    """It already runs unchanged, so only the probe is sent."""
    replaces: FoundStack | None
    """What will be stopped first."""
    unchanged: bool = False
    """Whether that is the same server, to be started afresh."""
    image: str | None
    """The image to pull; None if it is present or not needed."""
    runtime: RuntimeSpec | None
    """The environment to build."""
    fetch: tuple[ModelRef, ...]
    """Models that the server will have to fetch from the Hub."""
    place: tuple[ModelRef, ...]
    """Tiny models to copy to where they are read."""
    folders: tuple[ModelRef, ...]
    """Models in folders that must exist."""
    ask_access: tuple[ModelRef, ...]
    """Models of the Hub that this user must be allowed to read."""
    of_hub: tuple[ModelRef, ...]
    """All models of the Hub."""
    offline: Offline
    expects: str
    """What counts as ready."""
    rollback: KnownGood | None
    """What to restart if this does not become ready."""
    observed: Observed | None = None
    """What decided it; None if a known good stack is started."""
    to_measure: bool = False
    """It is started only to be timed, and not kept as known good."""
    any_text: bool = False
    """An unreadable first answer is accepted."""

    @property
    def server(self) -> Server:
        """The server that will be started."""
        return self.started.server

    @property
    def locked_runtime(self) -> Lock | None:
        """The lock whose versions the server's environment must have; None where there is no such environment."""
        if self.observed and self.started.locked and not uses_image(self.engine):
            lock = self.observed.lock
        else:
            lock = None
        if isinstance(lock, Lock):
            return lock
        return None

    @property
    def port_is_free(self) -> bool:
        """Whether the port is held by what will be stopped first."""
        return bool(self.replaces and self.replaces.started.server.port == self.server.port)


def decide(request: UpRequest, observed: Observed) -> Start:
    """Return what `up` or `restart` will do.

    Raises EnvironmentMissing if it is unknown whether the stack runs and no engine was named.
    """
    before, server = observed.before, observed.server
    _refuse_unknown(before, forced=request.engine)
    _refuse_measured(before, request.measured_by)
    started = _as_started(request, observed)
    runs = bool(before) and _runs_as_rendered(before, started, observed)
    joins = runs and not request.afresh and before is not None and before.started.by == started.by
    if before and before.lives and not joins:
        replaces = before
    else:
        replaces = None
    of_hub = [seen for seen in observed.models if not seen.model.local]
    tiny = [seen for seen in observed.models if seen.model.is_tiny]
    fetch = [seen.model for seen in of_hub if seen.here == "missing"]
    place = [seen.model for seen in tiny if seen.here == "missing"]
    if server.nodes:
        folders = []  # each machine has its own, and its doctor looks
    else:
        folders = [seen.model for seen in observed.models if seen.model.local and not seen.model.is_tiny]
    if observed.hub_is_off:
        ask_access = []
    else:
        ask_access = [seen.model for seen in of_hub if seen.here != "here"]
    if joins and before:
        started = before.started
    rollback = replaces.good if replaces and request.rollback_on_failure else None
    return Start(
        engine=observed.engine,
        why=observed.why,
        remote=observed.remote,
        started=started,
        files=observed.stack.files,
        command=observed.command,
        environment=_environment(observed),
        joins=joins,
        replaces=replaces,
        unchanged=runs,
        image=server.image if observed.image == "missing" else None,
        runtime=observed.runtime,
        fetch=tuple(fetch),
        place=tuple(place),
        folders=tuple(folders),
        ask_access=tuple(ask_access),
        of_hub=tuple(seen.model for seen in of_hub),
        offline=_offline(observed),
        expects=_expects(server),
        rollback=rollback,
        observed=observed,
        to_measure=request.to_measure,
        any_text=request.any_text,
    )


def _as_started(request: UpRequest, observed: Observed) -> Started:
    """Return the record of a start with these options."""
    return Started.of(
        request,
        engine=observed.engine,
        server=observed.server,
        profile=observed.profile,
        hub_cache=observed.hub_cache,
        since=observed.now,
        boot_id=observed.boot_id,
        by=request.measured_by,
        last_ready=_last_ready(observed.before),
    )


def decide_rollback(
    good: KnownGood,
    files: Mapping[str, str],
    *,
    before: FoundStack | None,
    models: Sequence[ModelSeen],
    command: tuple[str, ...],
    remote: bool,
    now: float,
    boot_id: str = "",
    goes_back: bool = False,
) -> Start:
    """Return what `rollback` to a known good stack will do. Raises EnvironmentMissing as `decide`.

    With `goes_back`, the server that it replaces is started again if this one does not become ready.
    """
    _refuse_unknown(before, forced=None)
    _refuse_measured(before, None)
    replaces = before if before and before.lives else None
    started = dataclasses.replace(
        good.started,
        known_good=good.key,
        since=now,
        boot_id=boot_id,
        outcome="starting",
        last_ready=_last_ready(before),
    )
    offline: Offline = "no"
    if started.hub_cache and all(seen.pinned for seen in models):
        offline = offline_for(models)
    of_hub = [seen.model for seen in models if not seen.model.local]
    way_back = _other_than(good, replaces) if goes_back else None
    return Start(
        engine=started.engine,
        why=f"{started.engine}: known to be good there",
        remote=remote,
        started=started,
        files=files,
        command=command,
        environment=tuple(sorted(started.server.environment)),
        joins=False,
        replaces=replaces,
        image=None,
        runtime=None,
        fetch=(),
        place=(),
        folders=(),
        ask_access=(),
        of_hub=tuple(of_hub),
        offline=offline,
        expects=_expects(started.server),
        rollback=way_back,
    )


def _other_than(good: KnownGood, replaces: FoundStack | None) -> KnownGood | None:
    """Return what the replaced server is known as, if that is not the stack that takes its place."""
    before = replaces.good if replaces else None
    if before and before.key != good.key:
        return before
    return None


def _refuse_unknown(before: FoundStack | None, *, forced: EngineName | None) -> None:
    """Raise EnvironmentMissing for a server that may still run, unless the user named an engine."""
    if before is None or before.state.status != "unknown" or (forced and forced != before.started.engine):
        return
    name, engine = before.started.server.name, before.started.engine
    other = other_engines(engine)[0]
    raise EnvironmentMissing(
        f"cannot tell whether {name} runs ({engine}): {before.state.detail}",
        hint=before.state.hint or f"gemmaspec up {name} --engine {other}    # if that server no longer exists",
    )


def _refuse_measured(before: FoundStack | None, by: Caller | None) -> None:
    """Raise GemmaspecError for a server that somebody else measures now."""
    if before and before.lives and before.being_measured and before.started.by != by:
        name = before.started.server.name
        raise GemmaspecError(
            f"{name} is being measured by {before.started.by}",
            hint=f"gemmaspec down {name}    # ends that; or wait for it",
        )


def _last_ready(before: FoundStack | None) -> Options | None:
    if before:
        return before.started.last_good_options
    return None


def _runs_as_rendered(before: FoundStack | None, started: Started, observed: Observed) -> bool:
    """Return whether the stack already runs with the same engine, files and command."""
    if before is None or before.state.status != "running" or before.started.is_unwanted:
        return False
    same = before.started.engine == started.engine and before.started.server == started.server
    return same and observed.same_files


def _environment(observed: Observed) -> tuple[str, ...]:
    profile = observed.loaded.profile
    names = {*observed.server.environment, *profile.env, *profile.pass_env}
    if _offline(observed) != "no":
        names.add("HF_HUB_OFFLINE")
    return tuple(sorted(names))


def _offline(observed: Observed) -> Offline:
    """Return whether the server must not use the Hub. The profile or shell decides if it sets HF_HUB_OFFLINE."""
    decided = observed.hub_is_off or "HF_HUB_OFFLINE" in observed.loaded.profile.env
    if decided or observed.hub_cache is None:
        return "no"
    return offline_for(observed.models)


def offline_for(models: Sequence[ModelSeen]) -> Offline:
    """Return whether a server of these models must not use the Hub.

    vLLM asks the Hub even for what the cache has, and dies if the Hub does not answer. So it starts offline if
    all models are complete in the cache, and either pinned to a commit or the Hub does not answer.
    """
    of_hub = [seen for seen in models if not seen.model.local]
    if not of_hub or not all(seen.whole for seen in of_hub):
        return "no"
    if all(seen.pinned for seen in of_hub):
        return "yes"
    return "if the Hub does not answer"


def _expects(server: Server) -> str:
    if server.speculates and not server.looks_up:
        drafts = ", and has drafted for it"
    else:
        drafts = ""
    return f"{server.base_url}/v1 answers as {server.model}{drafts}"
