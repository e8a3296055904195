"""The content of a lock: everything that affects what runs and could change between two starts of one profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from gemmaspec.profile.engines import EngineName, uses_image
from gemmaspec.profile.fields import Image, ModelRef, Name, Text

Sha256 = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]

NONE: Final = "none"
"""The text for a missing fact."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class LockedImage(_Part):
    """The docker engine's image."""

    name: Image
    """The name in the profile."""
    digest: Sha256 | None = None
    """Digest of its manifest, by which any machine can pull it; None for an image that was built on this machine."""
    id: Sha256
    """Digest of its configuration, which identifies the inspected image."""

    @property
    def ref(self) -> str:
        """The reference for Docker: by digest if there is one, else by id."""
        return f"{self.name.partition('@')[0]}@{self.digest}" if self.digest else self.id


class LockedModel(_Part):
    """Target or draft."""

    model: ModelRef
    asked: Text | None = None
    """The requested revision: the branch, tag or commit in the profile; None for the default branch."""
    revision: Commit | None = None
    """The commit that the requested revision resolved to."""
    digest: Sha256 | None = None
    """For a folder: see gemmaspec.models.digest."""


class Versions(_Part):
    """The versions in the image or in the runtime."""

    vllm: Text
    torch: Text
    transformers: Text


class Lock(_Part):
    """The pinned facts of one profile's stack on one engine."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    profile: Name
    engine: EngineName
    plan: Sha256
    image: LockedImage | None = None
    target: LockedModel
    draft: LockedModel | None = None
    versions: Versions

    @model_validator(mode="after")
    def _whole(self) -> Lock:
        if uses_image(self.engine) != (self.image is not None):
            rule = "is required for" if uses_image(self.engine) else "is not allowed for"
            raise ValueError(f"image {rule} the {self.engine} engine")
        return self

    def facts(self) -> Mapping[str, str]:
        """Return all facts as texts by dotted name, to compare. Missing ones are omitted; a missing draft is `none`."""
        whole = self.model_dump(exclude={"schema_", "profile"}, exclude_none=True)
        flat = {"draft.model": NONE}
        for key, value in whole.items():
            parts = value.items() if isinstance(value, dict) else [(None, value)]
            flat |= {f"{key}.{name}" if name else key: text for name, text in parts}
        return flat
