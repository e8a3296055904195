"""Which attention backend a profile's models will get, and which a running server logged."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from gemmaspec.errors import GemmaspecError
from gemmaspec.profile.attention import Role, backend_of

if TYPE_CHECKING:
    from gemmaspec.checkpoint.parts import Checkpoint
    from gemmaspec.deploy.stacks import Started
    from gemmaspec.profile.model import Profile

_BACKEND: Final = re.compile(
    r"(?:Using |forcing )(?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]{2,40}) (?:attention )?backend\b"
)
"""vllm/platforms/cuda.py and vllm/model_executor/models/config.py, 0.24.0 to 0.33.0; the target's comes first."""
_LINES: Final = 20_000
"""Lines of a log that are searched; a start logs its backends among the first thousand."""

Backends = Mapping[str, str | None]
"""`target` and, with one, `draft` → the backend; None where it is not known."""


def expected(profile: Profile, target: Checkpoint | None = None) -> Backends:
    """Return the backend of each model, as the layers of the profile's release choose it."""
    from gemmaspec.profile.runs import vllm_of
    from gemmaspec.releases.facts import nearest, newest

    roles: tuple[Role, ...] = ("target", "draft") if profile.draft else ("target",)
    vllm = nearest(vllm_of(profile) or newest())
    masks = None if target is None or target.masks_images else False
    return {role: backend_of(profile, vllm, role=role, masks=masks) for role in roles}


def logged(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the backends that a log names, each once, in their order."""
    found = (used[1] for line in islice(lines, _LINES) if (used := _BACKEND.search(line)))
    return tuple(dict.fromkeys(found))


def of_running(started: Started) -> tuple[str, ...]:
    """Return the backends that a server logged; nothing if its log cannot be read, or is of another vLLM."""
    from gemmaspec.deploy import stacks

    with contextlib.suppress(GemmaspecError, OSError):
        return logged(stacks.engine_of(started).logs(started.server))
    return ()


def words(chosen: Backends) -> str:
    """Return the backends for people; empty where none is known."""
    known = any(chosen.values())
    return ", ".join(f"{role} {name or 'unknown'}" for role, name in chosen.items()) if known else ""
