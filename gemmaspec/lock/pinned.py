"""Replace the tags and branches of a profile with a lock's digests and commits."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from gemmaspec.lock.document import LockedImage, LockedModel
from gemmaspec.profile.load import Loaded
from gemmaspec.profile.model import Draft, Target

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
