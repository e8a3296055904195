"""How a lock is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import write_whole
from gemmaspec.core.lock.document import Lock, Moved, moved
from gemmaspec.core.lock.text import lock_text
from gemmaspec.core.profile.engines import uses_image
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.run.engine.choose import choose_engine
from gemmaspec.run.engine.server import EngineName
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.lockfile import DamagedLock, lock_file, read_lock
from gemmaspec.run.kept.models import ModelRef, in_cache
from gemmaspec.run.kept.stack_lock import owned
from gemmaspec.run.models import access
from gemmaspec.run.models.hub import Unreachable
from gemmaspec.serve import knowngood
from gemmaspec.serve.knowngood import KnownGood
from gemmaspec.serve.prepare import resolve


@dataclass(frozen=True, kw_only=True)
class WrittenLock:
    """A lock that was written."""

    file: Path
    lock: Lock
    first: bool
    moved: tuple[Moved, ...]
    """Differences from the lock that was replaced."""


def lock_profile(profile: str, engine: EngineName | None, note: Callable[[str], None]) -> WrittenLock:
    """Resolve what a profile runs now, or would run, and write its lock.

    A running stack is pinned as it runs: with its image, and with its engine unless another one is named. Raises
    EnvironmentMissing for what is not on this machine, and if it is unknown whether the stack runs.
    """
    loaded = load_profile(profile)
    name = loaded.profile.name
    with owned(name, "lock", note=note):
        started = stacks.read_stack(name)
        state = stacks.look(started) if started else None
        if started and state and state.status == "unknown" and not engine:
            why = f"cannot tell whether {name} runs ({started.engine}): {state.detail}"
            raise EnvironmentMissing(why, hint=state.hint)
        if started and state and state.lives:
            runs_on = started.engine
        else:
            runs_on = None
        chosen, why = choose_engine(engine, runs_on=runs_on, profile=loaded.profile)
        note(f"engine {why}")
        if started and runs_on == chosen.name:
            runs = chosen.runs(started.server)
        else:
            runs = None
        good = None
        if started and runs:
            good = knowngood.find(started)
        return write_lock(loaded, chosen.name, note, running_image=runs.image if runs else None, good=good)


def write_lock(
    loaded: Loaded,
    engine: EngineName,
    note: Callable[[str], None],
    *,
    running_image: str | None = None,
    good: KnownGood | None = None,
) -> WrittenLock:
    """Resolve what a profile would run now, and write its lock.

    `running_image` is the id of the image that runs, and `good` the known good stack that runs: its models are pinned
    at the commits at which they run, whatever the Hub has by now.

    Raises EnvironmentMissing for what is not on this machine, and for a model whose commit neither the Hub nor the
    cache knows. A damaged lock is replaced.
    """
    before = _replaced(loaded, note)
    from_cache = in_cache(loaded.profile, in_image=uses_image(engine))
    lock = resolve(
        loaded,
        engine,
        lambda model: _as_it_runs(model, good) or _commit(model, from_cache(model), note),
        running_image=running_image,
        asks_registry=True,
    )
    if lock.image and lock.image.id is None:
        note(f"the image {lock.image.name} is not on this machine: its registry named the digest, nothing was pulled")
    file = lock_file(loaded)
    write_whole(file, lock_text(lock))
    return WrittenLock(
        file=file, lock=lock, first=before is None, moved=moved(before.facts(), lock.facts()) if before else ()
    )


def _replaced(loaded: Loaded, note: Callable[[str], None]) -> Lock | None:
    """Return the lock to replace; None if it is missing or damaged, which is noted."""
    try:
        return read_lock(loaded)
    except DamagedLock as error:
        note(f"{error.message}\nreplacing the damaged lock")
        return None


def _as_it_runs(model: ModelRef, good: KnownGood | None) -> str | None:
    """Return the commit at which a model runs; None if it does not run, or if the profile names another by now."""
    if good is None:
        return None
    for locked in (good.facts.target, good.facts.draft):
        if locked and (locked.model, locked.asked) == (model.model, model.revision):
            return locked.revision
    return None


def _commit(model: ModelRef, in_cache: str | None, note: Callable[[str], None]) -> str:
    """Return the commit according to the Hub, or to the cache if the Hub does not answer."""
    try:
        if access.is_offline():
            raise Unreachable(f"{model.role}.model: HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE")
        return access.check_access(model.model, model.revision, role=model.role)
    except Unreachable as error:
        if in_cache is None:
            raise EnvironmentMissing(
                f"{error.message}, and the cache does not have the commit of {model.model} runs", hint=error.hint
            ) from None
        note(f"{error.message}: using the commit in the cache")
        return in_cache
