"""The models of a profile: which they are, where they are stored, and whether they exist before a start."""

from __future__ import annotations

import filecmp
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gemmaspec.core import data
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import make_folder, state_dir
from gemmaspec.core.profile.model import Profile
from gemmaspec.run.models import access
from gemmaspec.run.models.digest import folder_digest
from gemmaspec.run.models.hub import Unreachable
from gemmaspec.run.stack.paths import is_local, on_host


@dataclass(frozen=True, kw_only=True)
class ModelRef:
    """Target or draft of a profile."""

    role: str
    model: str
    revision: str | None

    @property
    def local(self) -> bool:
        """Whether it is a folder on this machine."""
        return is_local(self.model)

    @property
    def folder(self) -> Path:
        """That folder."""
        return Path(on_host(self.model, state=state_dir()))

    @property
    def is_tiny(self) -> bool:
        """Whether it is one of the tiny models that ship with gemmaspec."""
        return data.shipped(self.model) is not None

    @property
    def is_here(self) -> bool:
        """Whether its folder has a config and, for a tiny model, just the files that ship."""
        if not (shipped := data.shipped(self.model)):
            return (self.folder / "config.json").is_file()
        names = [file.name for file in shipped.iterdir()]
        return filecmp.cmpfiles(shipped, self.folder, names, shallow=False)[0] == names


def models_of(profile: Profile) -> Iterator[ModelRef]:
    """Yield the target, then the draft if there is one."""
    yield ModelRef(role="target", model=profile.target.model, revision=profile.target.revision)
    if profile.draft:
        yield ModelRef(role="draft", model=profile.draft.model, revision=profile.draft.revision)


def hub_cache(profile: Profile) -> Path | None:
    """Return the Hugging Face cache that the profile's server uses; None for this user's own."""
    home = profile.caches.huggingface
    if home:
        return Path(on_host(home, state=state_dir())) / "hub"
    return None


def server_cache(profile: Profile, *, in_image: bool) -> Path | None:
    """Return the cache as the server sees it; None for a container's volume, which is not visible from here."""
    from huggingface_hub import constants

    if in_image and not profile.caches.huggingface:
        return None
    return hub_cache(profile) or Path(constants.HF_HUB_CACHE)


Commit = Callable[[ModelRef], "str | None"]
"""Maps a model of the Hub to the commit of its revision; None if unknown."""


def in_cache(profile: Profile, *, in_image: bool) -> Commit:
    """Return the commits in the cache that the server uses, without the network."""
    cache = server_cache(profile, in_image=in_image)
    return lambda model: access.cached_commit(model.model, model.revision, cache=cache) if cache else None


def check_access(models: Iterable[ModelRef], *, note: Callable[[str], None]) -> None:
    """Raise EnvironmentMissing for a model of the Hub that this user cannot read.

    A Hub that does not answer is only noted, because the models may be in the cache.
    """
    for model in models:
        try:
            access.check_access(model.model, model.revision, role=model.role)
        except Unreachable as error:
            note(f"{error.message.partition(': ')[2]}; continuing, because the model may be in the cache")


def hub_answers(models: Iterable[ModelRef], *, note: Callable[[str], None]) -> bool:
    """Return whether the Hub answers for these models; a refusal is an answer too."""
    try:
        for model in models:
            access.check_access(model.model, model.revision, role=model.role)
    except Unreachable:
        note("the Hub does not answer; the server will use the models in the cache")
        return False
    except EnvironmentMissing:
        return True  # the server itself reports it, unless the model is in the cache
    return True


def place(tiny: ModelRef) -> None:
    """Copy a tiny model to where its profile reads it, completely or not at all; an older one is replaced.

    Raises EnvironmentMissing if that fails.
    """
    try:
        _copy(tiny)
    except OSError as error:
        why = error.strerror or "some of its files cannot be copied"
        raise EnvironmentMissing(
            f"{tiny.role}.model: cannot be copied to {tiny.folder}: {why}", hint=f"df -h {tiny.folder.parent}"
        ) from None


def _copy(tiny: ModelRef) -> None:
    make_folder(tiny.folder.parent)
    with tempfile.TemporaryDirectory(dir=tiny.folder.parent, prefix=".") as temporary:
        copy = Path(temporary) / "copy"
        shutil.copytree(data.MODELS / tiny.folder.name, copy)
        for path in (copy, *copy.iterdir()):  # a server in a container may run as another user
            path.chmod(0o755 if path == copy else 0o644)
        if tiny.folder.exists():
            tiny.folder.rename(Path(temporary) / "replaced")
        copy.rename(tiny.folder)


def check_folder(ref: ModelRef) -> None:
    """Raise EnvironmentMissing for a model's folder that is missing or has no config."""
    if not ref.folder.is_dir():
        if ref.is_tiny:
            places = "gemmaspec up tiny-cpu    # copies it there"
        else:
            places = None
        raise EnvironmentMissing(f"{ref.role}.model: missing folder {ref.folder}", hint=places)
    if not (ref.folder / "config.json").is_file():
        raise EnvironmentMissing(f"{ref.role}.model: {ref.folder} has no config.json, so it is not a model")


def digest_of(ref: ModelRef) -> str:
    """Return sha256:… of a model's folder, as a lock has it. Raises EnvironmentMissing as `check_folder`."""
    check_folder(ref)
    return folder_digest(ref.folder)


def hub_is_off(profile: Profile) -> bool:
    """Return whether the profile, or else this user's shell, has disabled the Hub (HF_HUB_OFFLINE)."""
    value = profile.env.get("HF_HUB_OFFLINE")
    if value is not None:
        return value.upper() in access.ON
    return access.is_offline()
