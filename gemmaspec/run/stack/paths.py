"""The paths of a stack's models and files, as the server sees them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.core import draft_ids
from gemmaspec.core.profile.fields import LOCAL_PREFIXES
from gemmaspec.core.profile.model import Profile

IN_CONTAINER: Final = "/gemmaspec"
"""The path of the stack folder in a container."""
_WORKSPACE: Final = "/vllm-workspace/"
"""Where vllm/vllm-openai has vLLM's examples (docker/Dockerfile, every release)."""
TEMPLATE_FILE: Final = "chat-template.jinja"
SPECULATIVE_FILE: Final = "speculative-config.json"
PROBE_FILE: Final = "probe.py"


@dataclass(frozen=True, kw_only=True)
class Paths:
    """The paths that a server sees: those on its command line, and of a process also its interpreter and its caches."""

    host: str
    """The address that vLLM itself listens on."""
    target: str
    draft: str | None
    template: str | None
    brings_template: bool = False
    """Whether the stack brings that template, which vLLM's image does not have."""
    draft_ids: str | None = None
    """The list of ids that the draft may propose, which the stack brings."""
    python: str | None = None
    huggingface: str | None = None
    compile: str | None = None


def is_local(model: str) -> bool:
    """Return whether a model is a local folder rather than a Hugging Face id."""
    return model.startswith(LOCAL_PREFIXES)


def container_paths(profile: Profile) -> Paths:
    """Return the paths inside the container, in which local models are mounted under /models.

    The server listens on all addresses of the container, and the published port decides who can reach it; one rank of
    several has the machine's own network, and listens on `serve.bind`.
    """
    draft = profile.draft.model if profile.draft else None
    template = template_in_image(profile)
    brings_template = bool(profile.chat.template) and not template
    if brings_template:
        template = f"{IN_CONTAINER}/{TEMPLATE_FILE}"
    if profile.nodes == 1:
        host = "0.0.0.0"  # noqa: S104 - inside the container's own network
    else:
        host = profile.serve.bind
    return Paths(
        host=host,
        target="/models/target" if is_local(profile.target.model) else profile.target.model,
        draft="/models/draft" if draft and is_local(draft) else draft,
        template=template,
        brings_template=brings_template,
        draft_ids=_ids_in(profile, IN_CONTAINER),
    )


def _ids_in(profile: Profile, folder: str | Path) -> str | None:
    """Return the path of the list of ids in the stack's folder; None without one."""
    if has_ids(profile):
        return f"{folder}/{draft_ids.FILE}"
    return None


def has_ids(profile: Profile) -> bool:
    """Return whether a list says which ids the draft may propose."""
    return bool(profile.speculative and profile.draft and profile.draft.ids)


def template_in_image(profile: Profile) -> str | None:
    """Return the path of a chat template that vLLM's image brings; None for one of this machine, or none."""
    template = profile.chat.template or ""
    if profile.image and template.startswith(_WORKSPACE) and ".." not in template:
        return template
    return None


def host_paths(profile: Profile, *, folder: Path, state: Path) -> Paths:
    """Return the paths on this machine, for the process engine."""

    def here(path: str | None) -> str | None:
        if path:
            return on_host(path, state=state)
        return None

    draft = profile.draft.model if profile.draft else None
    brings_template = bool(profile.chat.template)
    template = str(folder / TEMPLATE_FILE) if brings_template else None
    return Paths(
        host=profile.serve.bind,
        target=on_host(profile.target.model, state=state),
        draft=here(draft),
        template=template,
        python=here(profile.runtime.python),
        huggingface=here(profile.caches.huggingface),
        compile=here(profile.caches.compile),
        brings_template=brings_template,
        draft_ids=_ids_in(profile, folder),
    )


def on_host(model: str, *, state: Path) -> str:
    """Return the path of a model's folder on this machine; a Hugging Face id stays unchanged."""
    if model.startswith("state:"):
        return str(state / model.removeprefix("state:"))
    if is_local(model):
        return str(Path(model).expanduser())
    return model
