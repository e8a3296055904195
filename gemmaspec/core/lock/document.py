"""The content of a lock: everything that affects what runs and could change between two starts of one profile.

Facts that changed since they were locked.

Replace the tags and branches of a profile with a lock's digests and commits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from gemmaspec.core.errors import ProfileError
from gemmaspec.core.profile.engines import EngineName, uses_image
from gemmaspec.core.profile.fields import Image, ModelRef, Name, Text
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.model import Draft, Target

Sha256 = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]

NONE: Final = "none"
"""The text for a missing fact."""


class _LockedPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class LockedImage(_LockedPart):
    """The docker engine's image."""

    name: Image
    """The name in the profile."""
    digest: Sha256 | None = None
    """Digest of its manifest, by which any machine can pull it; None for an image that was built on this machine."""
    id: Sha256 | None = None
    """Digest of its configuration, which identifies the inspected image; None if a registry named the digest alone."""

    @property
    def ref(self) -> str:
        """The reference for Docker: by digest if there is one, else by id."""
        if self.digest:
            return f"{self.name.partition('@')[0]}@{self.digest}"
        return str(self.id)

    @model_validator(mode="after")
    def _named(self) -> LockedImage:
        if self.digest is None and self.id is None:
            raise ValueError("a digest or an id is required")
        return self


class LockedModel(_LockedPart):
    """Target or draft."""

    model: ModelRef
    asked: Text | None = None
    """The requested revision: the branch, tag or commit in the profile; None for the default branch."""
    revision: Commit | None = None
    """The commit that the requested revision resolved to."""
    digest: Sha256 | None = None
    """For a folder: see gemmaspec.run.models.download."""


class Versions(_LockedPart):
    """The versions in the image or in the runtime."""

    vllm: Text
    torch: Text
    transformers: Text


class Lock(_LockedPart):
    """The pinned facts of one profile's stack on one engine."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    profile: Name
    engine: EngineName
    plan: Sha256
    image: LockedImage | None = None
    target: LockedModel
    draft: LockedModel | None = None
    versions: Versions | None = None
    """None for an image that was not on this machine when it was locked."""

    @model_validator(mode="after")
    def _whole(self) -> Lock:
        if uses_image(self.engine) != (self.image is not None):
            if uses_image(self.engine):
                rule = "is required for"
            else:
                rule = "is not allowed for"
            raise ValueError(f"image {rule} the {self.engine} engine")
        if self.versions is None and (self.image is None or self.image.id):
            raise ValueError("versions are required for what is on this machine")
        return self

    @property
    def vllm(self) -> str:
        """The version of vLLM for people, `unknown` where the lock does not have it."""
        if self.versions:
            return self.versions.vllm
        return "unknown"

    def facts(self) -> Mapping[str, str]:
        """Return all facts as texts by dotted name, to compare. Missing ones are omitted; a missing draft is `none`."""
        whole = self.model_dump(exclude={"schema_", "profile"}, exclude_none=True)
        flat = {"draft.model": NONE}
        for key, value in whole.items():
            if isinstance(value, dict):
                flat |= {f"{key}.{name}": text for name, text in value.items()}
            else:
                flat[key] = value
        return flat


@dataclass(frozen=True)
class Moved:
    """One fact, as locked and as it is now."""

    what: str
    """Its name in the lock: image.digest, draft.revision, plan …"""
    was: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: was {self.was}, is {self.now}"


def moved(locked: Mapping[str, str], now: Mapping[str, str], *, among: Sequence[str] = ()) -> tuple[Moved, ...]:
    """Return the facts that differ (named as in Lock.facts()), in the lock's order.

    A fact that `now` lacks is unknown and not compared. `among` names facts that count as `none` if `now` lacks them,
    so that a removed fact is reported.
    """
    names = [*locked, *(name for name in now if name not in locked)]
    known = {**dict.fromkeys(among, NONE), **now}
    differing = []
    for name in names:
        before = locked.get(name, NONE)
        if name in known and known[name] != before:
            differing.append(Moved(name, before, known[name]))
    return tuple(differing)


def warnings(lock: Lock | ProfileError | None, now: Lock) -> Sequence[str]:
    """Return the warnings after an unlocked start: the differences between the lock, if any, and what runs."""
    if isinstance(lock, ProfileError):
        return [f"warning: {lock.message}"]
    if lock is None:
        return []
    locked = lock.facts()
    compared = {*locked, "draft.model"}
    facts = {name: value for name, value in now.facts().items() if name in compared}
    return [f"warning: differs from the lock: {change}" for change in moved(locked, facts)]


Model = TypeVar("Model", Target, Draft)


def pinned(
    loaded: Loaded, *, image: LockedImage | None, target: LockedModel | None, draft: LockedModel | None
) -> Loaded:
    """Return the profile with pinned image and revisions; a part whose pin is None stays unchanged."""
    profile = loaded.profile
    fixed = profile.model_copy(
        update={
            "image": image.ref if image else profile.image,
            "target": _at(profile.target, target),
            "draft": _at(profile.draft, draft) if profile.draft else None,
        }
    )
    return dataclasses.replace(loaded, profile=fixed)


def _at(part: Model, lock: LockedModel | None) -> Model:
    if lock is None or lock.revision is None:
        return part
    return part.model_copy(update={"revision": lock.revision})
