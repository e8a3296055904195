"""Whether a profile still matches its lock, and how it runs as locked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gemmaspec.core.errors import DifferencesFound, ProfileError, UsageError
from gemmaspec.core.lock.document import NONE, Lock, LockedImage, Moved, moved, pinned
from gemmaspec.core.profile.engines import uses_image
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.model import Profile
from gemmaspec.run.engine.identity import image_identity
from gemmaspec.run.engine.server import EngineName, Server
from gemmaspec.run.kept.lockfile import lock_file, read_lock
from gemmaspec.run.kept.models import digest_of, models_of
from gemmaspec.run.runtime.managed import versions_at
from gemmaspec.serve.prepare import plan_digest


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
