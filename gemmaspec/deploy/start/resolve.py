"""What a profile would run on this machine now: the facts that a lock records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gemmaspec import data
from gemmaspec.deploy.kept.models import ModelRef, check_folder, models_of, server_cache
from gemmaspec.deploy.start.prepare import runtime_spec
from gemmaspec.engine.identity import image_identity
from gemmaspec.engine.server import EngineName
from gemmaspec.errors import EnvironmentMissing, UsageError
from gemmaspec.files import state_dir
from gemmaspec.lock.document import NONE, Lock, LockedImage, LockedModel, Versions
from gemmaspec.models import access
from gemmaspec.models.digest import folder_digest
from gemmaspec.patching.patch import Shelf
from gemmaspec.profile.engines import uses_image
from gemmaspec.profile.load import Loaded
from gemmaspec.profile.model import Profile
from gemmaspec.runtime.managed import describe
from gemmaspec.stack.build import profile_plan
from gemmaspec.stack.paths import on_host
from gemmaspec.trees.versions import image_versions, interpreter_versions

Commit = Callable[[ModelRef], "str | None"]
"""Maps a model of the Hub to the commit of its revision; None if unknown."""


def resolve(loaded: Loaded, engine: EngineName, commit: Commit, *, running_image: str | None = None) -> Lock:
    """Return everything that decides what runs. Starts nothing, and reads an image without running it.

    `running_image` is the id of the image that runs, whatever the profile's image refers to by now.

    Raises EnvironmentMissing for a missing image, runtime or model folder.
    """
    profile = loaded.profile
    image = _locked_image(loaded, running_image) if uses_image(engine) else None
    models = [_locked_model(model, commit) for model in models_of(profile)]
    return Lock(
        profile=profile.name,
        engine=engine,
        plan=plan_digest(profile),
        image=image,
        target=models[0],
        draft=models[1] if len(models) > 1 else None,
        versions=_image_versions(profile, image) if image else runtime_versions(loaded),
    )


def known_now(loaded: Loaded, engine: EngineName, lock: Lock) -> Mapping[str, str]:
    """Return the facts that a locked start cannot take from the lock, by the names of Lock.facts(). No network."""
    profile = loaded.profile
    facts: dict[str, str] = {"engine": engine, "plan": plan_digest(profile), "draft.model": NONE}
    for model in models_of(profile):
        facts |= {f"{model.role}.model": model.model, f"{model.role}.asked": model.revision or NONE}
        if model.local:
            facts[f"{model.role}.digest"] = _folder_digest(model)
    if uses_image(engine):
        facts |= _image_now(profile, lock.image)
    return facts


def cached(profile: Profile, engine: EngineName) -> Commit:
    """Return the commits in the cache that the server uses, without the network."""
    cache = server_cache(profile, in_image=uses_image(engine))
    return lambda model: access.cached_commit(model.model, model.revision, cache=cache) if cache else None


def runtime_versions(loaded: Loaded) -> Versions:
    """Return the versions in the process engine's environment. Raises EnvironmentMissing if it has not been built."""
    own = loaded.profile.runtime.python
    if own:
        return Versions(**interpreter_versions(Path(on_host(own, state=state_dir())), loaded.profile.env))
    found = describe(runtime_spec(loaded))
    if not found.complete:
        raise EnvironmentMissing(
            f"the runtime of {loaded.profile.name} has not been built yet",
            hint=f"gemmaspec pull {loaded.typed} --engine process",
        )
    return Versions(**{name: str(found.facts.get(name, "unknown")) for name in Versions.model_fields})


def _locked_image(loaded: Loaded, running: str | None) -> LockedImage:
    name = loaded.profile.image
    if not name:
        raise UsageError(f"{loaded.file}: image: missing, but the docker engine needs it")
    found = image_identity(running or name, named=name)
    if found is None:
        raise EnvironmentMissing(
            f"the image {name} is not on this machine", hint=f"gemmaspec pull {loaded.typed} --engine docker"
        )
    return LockedImage(name=name, digest=found.digest, id=found.id)


def _image_versions(profile: Profile, image: LockedImage) -> Versions:
    return Versions(**image_versions(image.id, python=profile.container.python))


def _image_now(profile: Profile, locked: LockedImage | None) -> dict[str, str]:
    """Return the image name, with its current id if the locked image is gone and cannot be pulled."""
    name = profile.image or NONE
    gone = locked and name == locked.name and not locked.digest and image_identity(locked.id) is None
    if not gone:
        return {"image.name": name}
    now = image_identity(name)
    return {"image.name": name, "image.id": now.id if now else NONE}


def _locked_model(model: ModelRef, commit: Commit) -> LockedModel:
    if model.local:
        return LockedModel(model=model.model, digest=_folder_digest(model))
    return LockedModel(model=model.model, asked=model.revision, revision=commit(model))


def _folder_digest(model: ModelRef) -> str:
    check_folder(model)
    return folder_digest(model.folder)


def plan_digest(profile: Profile) -> str:
    """Return sha256:… of a profile's plan, which holds its name."""
    return f"sha256:{profile_plan(profile, Shelf(data.patch_folders()))['sha256']}"
