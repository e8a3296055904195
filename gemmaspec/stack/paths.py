"""Where a stack's models and files are, seen from the server that will run it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.profile.fields import LOCAL_PREFIXES
from gemmaspec.profile.model import Profile

IN_CONTAINER: Final = "/gemmaspec"
"""Where a container sees the stack folder."""
TEMPLATE_FILE: Final = "chat-template.jinja"
SPECULATIVE_FILE: Final = "speculative-config.json"


@dataclass(frozen=True, kw_only=True)
class Paths:
    """What goes on the server's command line."""

    host: str
    """The address that vLLM itself listens on."""
    target: str
    draft: str | None
    template: str | None


def is_local(model: str) -> bool:
    """Return whether a model is a folder of this machine rather than a Hugging Face id."""
    return model.startswith(LOCAL_PREFIXES)


def container_paths(profile: Profile) -> Paths:
    """Return paths inside the container: local models are mounted under /models.

    The container listens on all of its own addresses; what of it can be reached is decided by the
    published port.
    """
    draft = profile.draft.model if profile.draft else None
    return Paths(
        host="0.0.0.0",  # noqa: S104 - inside the container's own network
        target="/models/target" if is_local(profile.target.model) else profile.target.model,
        draft="/models/draft" if draft and is_local(draft) else draft,
        template=f"{IN_CONTAINER}/{TEMPLATE_FILE}" if profile.chat.template else None,
    )


def host_paths(profile: Profile, *, folder: Path, state: Path) -> Paths:
    """Return paths on this machine, for the process engine."""
    return Paths(
        host=profile.serve.bind,
        target=on_host(profile.target.model, state=state),
        draft=on_host(profile.draft.model, state=state) if profile.draft else None,
        template=str(folder / TEMPLATE_FILE) if profile.chat.template else None,
    )


def on_host(model: str, *, state: Path) -> str:
    """Return a model or folder as this machine finds it; a Hugging Face id stays as it is."""
    if model.startswith("state:"):
        return str(state / model.removeprefix("state:"))
    return str(Path(model).expanduser()) if is_local(model) else model
