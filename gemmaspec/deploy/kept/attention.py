"""Which attention backend a profile's models will get, and what a running server logged of backends and graphs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from gemmaspec.errors import GemmaspecError
from gemmaspec.profile.attention import Role, backend_of
from gemmaspec.profile.graphs import graph_modes

if TYPE_CHECKING:
    from gemmaspec.checkpoint.parts import Checkpoint
    from gemmaspec.deploy.kept.stacks import Started
    from gemmaspec.profile.model import Profile

_BACKEND: Final = re.compile(
    r"(?:Using |forcing )(?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]{2,40}) (?:attention )?backend\b"
)
"""vllm/platforms/cuda.py and vllm/model_executor/models/config.py, from 0.24.0; the target's comes first."""
_LOWERED: Final = re.compile(
    r"CUDAGraphMode\.([A-Z_]{4,24}) is not supported with (spec-decode)?.{0,160}?; ?"
    r"setting cudagraph_mode=([A-Z_]{4,24})"
)
"""vllm/config/compilation.py, every release."""
_DRAFT: Final = ", and drafts after the first run without any; slower than no draft, see: gemmaspec explain GS501"
_NEGATIVE: Final = re.compile(r"Estimated CUDA graph memory: (-[0-9.]{1,8}) GiB")
"""vllm/v1/worker/gpu_model_runner.py; it is added to what the KV cache may take."""
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
    masks = None if target is None else target.masks_images
    return {role: backend_of(profile, vllm, role=role, masks=masks) for role in roles}


def graphs_expected(
    profile: Profile, vllm: str, *, capability: str | None, target: Checkpoint | None = None
) -> Iterator[str]:
    """Yield the CUDA graphs that a server will lack, and what brings them back; nothing where it has them."""
    from gemmaspec.releases.facts import nearest

    masks = target.masks_images if target else None
    modes = graph_modes(profile, nearest(vllm), capability=capability, masks=masks)
    if modes and modes.lost:
        yield f"CUDA graphs: {modes.words()}: {modes.why}; {modes.fix}"


@dataclass(frozen=True, kw_only=True)
class Logged:
    """What a server's log says of its speed and memory."""

    backends: tuple[str, ...] = ()
    """Attention backends, the target's first."""
    warnings: tuple[str, ...] = ()
    """CUDA graphs that vLLM gave up, and an estimate of their memory that cannot be."""


def logged(lines: Iterable[str]) -> Logged:
    """Return what a log names, each once, in its order."""
    backends: dict[str, None] = {}
    warnings: dict[str, None] = {}
    for line in islice(lines, _LINES):
        if used := _BACKEND.search(line):
            backends[used[1]] = None
        if lowered := _LOWERED.search(line):
            why = "speculation with this attention backend" if lowered[2] else "this attention backend"
            said = f"CUDA graphs are {lowered[3]} instead of {lowered[1]}: {why} does not allow those"
            warnings[said + (_DRAFT if lowered[2] else "")] = None
        if negative := _NEGATIVE.search(line):
            said = f"vLLM estimated {negative[1]} GiB for CUDA graphs, so the KV cache took memory that is not there"
            warnings[f"{said}: set serve.extra_args: [--kv-cache-memory-bytes, BYTES]"] = None
    return Logged(backends=tuple(backends), warnings=tuple(warnings))


def of_running(started: Started) -> Logged:
    """Return what a server logged; nothing if its log cannot be read, or is of another vLLM."""
    from gemmaspec.deploy.kept import stacks

    with contextlib.suppress(GemmaspecError, OSError):
        return logged(stacks.engine_of(started).logs(started.server))
    return Logged()


def words(chosen: Backends) -> str:
    """Return the backends for people; empty where none is known."""
    known = any(chosen.values())
    return ", ".join(f"{role} {name or 'unknown'}" for role, name in chosen.items()) if known else ""
