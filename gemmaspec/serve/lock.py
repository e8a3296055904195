"""Locks: how one is written, and whether a profile still matches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmaspec.core.errors import DifferencesFound, EnvironmentMissing, ProfileError, UsageError
from gemmaspec.core.files import write_whole
from gemmaspec.core.lock.document import NONE, Lock, LockedImage, Moved, moved, pinned
from gemmaspec.core.lock.text import lock_text
from gemmaspec.core.profile.engines import uses_image
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.model import Profile
from gemmaspec.run.engine.choose import choose_engine
from gemmaspec.run.engine.identity import image_identity
from gemmaspec.run.engine.server import EngineName, Server
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.lockfile import DamagedLock, lock_file, read_lock
from gemmaspec.run.kept.models import ModelRef, digest_of, in_cache, models_of
from gemmaspec.run.kept.stack_lock import owned
from gemmaspec.run.models import access
from gemmaspec.run.models.hub import Unreachable
from gemmaspec.run.runtime.managed import versions_at
from gemmaspec.serve.prepare import plan_digest, resolve


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
        if started and state and state.status in ("running", "restarting"):
            runs_on = started.engine
        else:
            runs_on = None
        chosen, why = choose_engine(engine, runs_on=runs_on, profile=loaded.profile)
        note(f"engine {why}")
        if started and runs_on == chosen.name:
            runs = chosen.runs(started.server)
        else:
            runs = None
        return write_lock(loaded, chosen.name, note, running_image=runs.image if runs else None)


def write_lock(
    loaded: Loaded, engine: EngineName, note: Callable[[str], None], *, running_image: str | None = None
) -> WrittenLock:
    """Resolve what a profile would run now, and write its lock; `running_image` is the id of the image that runs.

    Raises EnvironmentMissing for what is not on this machine, and for a model whose commit neither the Hub nor the
    cache knows. A damaged lock is replaced.
    """
    before = _replaced(loaded, note)
    from_cache = in_cache(loaded.profile, in_image=uses_image(engine))
    lock = resolve(
        loaded,
        engine,
        lambda model: _commit(model, from_cache(model), note),
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


def as_locked(loaded: Loaded, engine: EngineName, lock: Lock | ProfileError | None) -> Loaded:
    """Return the profile with the image and revisions of its lock, as `lock_of` returns it.

    Raises UsageError if there is no lock, ProfileError if it cannot be read, DifferencesFound with everything that
    differs from the lock.
    """
    if isinstance(lock, ProfileError):
        raise lock
    if lock is None:
        raise UsageError(
            f"{loaded.profile.name} has no lock: missing {lock_file(loaded)}",
            hint=f"gemmaspec lock {loaded.typed} --engine {engine}",
        )
    now = known_now(loaded, engine, lock)
    _refuse(loaded, engine, moved(lock.facts(), now))
    return pinned(loaded, image=lock.image, target=lock.target, draft=lock.draft)


def known_now(loaded: Loaded, engine: EngineName, lock: Lock) -> Mapping[str, str]:
    """Return the facts that a locked start cannot take from the lock, by the names of Lock.facts(). No network."""
    profile = loaded.profile
    if uses_image(engine):
        image = _image_now(profile, lock.image)
    else:
        image = {}
    facts: dict[str, str] = {"engine": engine, "plan": plan_digest(profile), "draft.model": NONE}
    for model in models_of(profile):
        facts |= {f"{model.role}.model": model.model, f"{model.role}.asked": model.revision or NONE}
        if model.local:
            facts[f"{model.role}.digest"] = digest_of(model)
    return facts | image


def _image_now(profile: Profile, locked: LockedImage | None) -> dict[str, str]:
    """Return the image name, with its current id if the locked image is gone and cannot be pulled."""
    name = profile.image or NONE
    if locked and name == locked.name and not locked.digest:
        by_id = locked.id
    else:
        by_id = None
    if by_id is None or image_identity(by_id):
        return {"image.name": name}
    now = image_identity(name)
    return {"image.name": name, "image.id": now.id if now else NONE}


def for_pull(loaded: Loaded, engine: EngineName, note: Callable[[str], None]) -> Loaded:
    """Return the profile by its lock, as `by_lock` does, and note how to run that."""
    locked = by_lock(loaded, engine, note)
    if locked is not loaded:
        note(f"as {lock_file(loaded)} pins it; to run that: gemmaspec up {loaded.typed} --locked")
    return locked


def by_lock(loaded: Loaded, engine: EngineName, note: Callable[[str], None]) -> Loaded:
    """Return the profile with what its lock, if it has one, pins of image, target and draft.

    What has moved since stays as it is; a model that is another one now is noted.
    """
    lock = read_lock(loaded)
    if lock is None:
        return loaded
    if lock.image and lock.image.digest and lock.image.name == loaded.profile.image:
        image = lock.image
    else:
        image = None
    models = {"target": lock.target, "draft": lock.draft}
    fits = {
        model.role: locked
        for model in models_of(loaded.profile)
        if (locked := models[model.role]) and (locked.model, locked.asked) == (model.model, model.revision)
    }
    for model in models_of(loaded.profile):
        if model.role not in fits:
            note(f"{model.role}: the lock names another model than the profile; fetching the profile's")
    return pinned(
        loaded, image=image if uses_image(engine) else None, target=fits.get("target"), draft=fits.get("draft")
    )


def check_runtime(loaded: Loaded, lock: Lock, server: Server) -> None:
    """Raise DifferencesFound if the environment of a process does not have the locked versions."""
    if server.python and (now := versions_at(server.python, server.environment)):
        facts = {f"versions.{name}": version for name, version in now.model_dump().items()}
        _refuse(loaded, "process", moved(lock.facts(), facts))


def _refuse(loaded: Loaded, engine: EngineName, changes: Sequence[Moved]) -> None:
    if changes:
        lines = "\n".join(f"  {change}" for change in changes)
        raise DifferencesFound(
            f"{loaded.profile.name} differs from what {lock_file(loaded)} pins:\n{lines}",
            hint=f"gemmaspec lock {loaded.typed} --engine {engine}    # to accept the change",
        )


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
