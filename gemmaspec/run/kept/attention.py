"""Which attention backend a profile's models will get, and what a running server logged of backends and graphs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.profile.device import device_of
from gemmaspec.core.profile.graphs import COST, GraphModes, hurts
from gemmaspec.core.profile.machines import ANY_GPU, MACHINES, machine_kind
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.resolved.logged import as_logged
from gemmaspec.core.resolved.resolve import Resolved, resolved_of

if TYPE_CHECKING:
    from gemmaspec.core.profile.model import Profile
    from gemmaspec.run.engine.server import Engine
    from gemmaspec.run.kept.stacks import Started

_BACKEND: Final = re.compile(
    r"(?:Using |forcing )(?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]{2,40}) (?:attention )?backend\b"
)
"""vllm/platforms/cuda.py and vllm/model_executor/models/config.py, from 0.24.0; the target's comes first."""
_ENGINE: Final = re.compile(r"Initializing a V1 LLM engine \(v.*?'cudagraph_mode': <CUDAGraphMode\.([A-Z_]{4,24}):")
"""vllm/v1/engine/core.py, every release: the mode after what the configuration decides; each start says it."""
_LOWERED: Final = re.compile(
    r"CUDAGraphMode\.[A-Z_]{4,24} is not supported with .{0,160}?; ?setting cudagraph_mode=([A-Z_]{4,24})"
    r"|requires piecewise capture, but .{0,160}? Overriding to (?:CUDAGraphMode\.)?([A-Z_]{4,24})"
)
"""resolve_cudagraph_mode_and_sizes of vllm/config/compilation.py, every release; the second from 0.32.0."""
_EAGER_DRAFT: Final = re.compile(r"does not support full CUDA graphs; running the draft eager")
"""vllm/v1/worker/gpu/spec_decode/dflash/speculator.py."""
_NEGATIVE: Final = re.compile(r"Estimated CUDA graph memory: (-[0-9.]{1,8}) GiB")
"""vllm/v1/worker/gpu_model_runner.py; it is added to what the KV cache may take."""
_CONFIG: Final = re.compile(r"\) with config: .{0,20000}?\bkv_cache_dtype=([\w.]{1,40})")
_TYPE: Final = re.compile(r"\bdtype=torch\.([a-z0-9_]{1,20})")
"""VllmConfig as the engine logs it (vllm/v1/engine/core.py, every release)."""
_KERNEL: Final = re.compile(
    r"Using ([A-Z][A-Za-z0-9]{1,40}?)(?:NvFp4|M[Xx]Fp[468]|Mxfp[468]|F[Pp]8|Int8|W4A16|W4A8|WNA16|Block|Scaled)*"
    r"(?:MM)?(?:Linear)?Kernel for "
)
"""vllm/model_executor/kernels/linear/__init__.py, from 0.26.0."""
_SAMPLING: Final = re.compile(r"sampling parameters have been overridden by .{1,200}?: `\{([^{}`]{1,300})\}`")
"""vllm/config/model.py, every release."""
_LINES: Final = 20_000
"""Lines of a log that are searched; a start logs its backends among the first thousand."""

Backends = Mapping[str, str | None]
"""`target` and, with one, `draft` → the backend; None where it is not known."""


def expected(resolved: Resolved) -> dict[str, str | None]:
    """Return the backend of each model of a profile."""
    backends = {"target": known(resolved.backend)}
    if resolved.draft_backend is not None:
        backends["draft"] = known(resolved.draft_backend)
    return backends


def lacking(resolved: Resolved) -> Iterator[str]:
    """Yield the CUDA graphs that a server will lack, and what brings them back; nothing where it has them."""
    modes = known(resolved.graphs)
    if modes and modes.lost:
        yield str(Graphs(modes=modes, hurts=hurts(resolved.profile, modes, slow=True), next=""))


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """What is known of a server's attention before it runs."""

    backends: dict[str, str | None]
    """Of each model, as `expected` returns them."""
    lost: tuple[str, ...]
    """The CUDA graphs that it will lack, and what brings them back."""

    @property
    def words(self) -> str:
        """The backends for people; empty where none is known."""
        return words(self.backends)


def ahead_of(resolved: Resolved) -> Ahead:
    """Return what is known of the attention of a server that vLLM would run so."""
    return Ahead(backends=expected(resolved), lost=tuple(lacking(resolved)))


def graphs_ahead(profile: Profile, *, elsewhere: bool) -> tuple[str, ...]:
    """Return the CUDA graphs that a start will lack; `elsewhere`: not on this machine, whose GPU is then not asked."""
    device = device_of(MACHINES[profile.machine])
    capability = None if elsewhere else capability_here(profile)
    if capability:
        device = replace(device, capability=capability)
    return tuple(lacking(resolved_of(profile, device=device)))


def capability_here(profile: Profile) -> str | None:
    """Return the compute capability of this machine's GPU for a profile that leaves the GPU open; else None."""
    from gemmaspec.run.machine import nvidia

    if machine_kind(profile.machine) != ANY_GPU:
        return None
    with contextlib.suppress(EnvironmentMissing):
        return next((card.capability for card in nvidia.gpus() if card.capability), None)
    return None


@dataclass(frozen=True, kw_only=True)
class Logged:
    """What a server's log says of its speed and memory."""

    backends: tuple[str, ...] = ()
    """Attention backends, the target's first."""
    mode: str | None = None
    """The CUDA graphs of the target in the last start, as vLLM resolved them; None if it does not say."""
    eager_draft: bool = False
    """Whether it says that the draft runs without graphs."""
    warnings: tuple[str, ...] = ()
    """An estimate of the memory of CUDA graphs that cannot be."""
    kv_cache: str | None = None
    """The format of the KV cache, in the words of rows."""
    linear_kernel: str | None = None
    """The kernel of the quantized matrices, as vLLM's linear_backend calls it."""
    sampling: str | None = None
    """How it samples where a request does not say."""


def logged(lines: Iterable[str]) -> Logged:
    """Return what a log names, each once, in its order."""
    backends: dict[str, None] = {}
    warnings: dict[str, None] = {}
    mode, eager = None, False
    kv_cache = kernel = sampling = None
    for line in islice(lines, _LINES):
        if used := _BACKEND.search(line):
            backends[used[1]] = None
        if begun := _ENGINE.search(line):
            mode, eager = begun[1], False
        if config := _CONFIG.search(line):
            kv_cache = _format(config[1], line)
        if by_model := _SAMPLING.search(line):
            sampling = by_model[1].replace("'", "").replace(":", "")
        if (used := _KERNEL.search(line)) and not kernel:
            kernel = _kernel(used[1])
        if lowered := _LOWERED.search(line):
            mode = lowered[1] or lowered[2]
        eager = eager or bool(_EAGER_DRAFT.search(line))
        if negative := _NEGATIVE.search(line):
            warning = f"vLLM estimated {negative[1]} GiB for CUDA graphs, so the KV cache took memory that is not there"
            warnings[f"{warning}: set serve.extra_args: [--kv-cache-memory-bytes, BYTES]"] = None
    return Logged(
        backends=tuple(backends),
        mode=mode,
        eager_draft=eager,
        warnings=tuple(warnings),
        kv_cache=kv_cache,
        linear_kernel=kernel,
        sampling=sampling,
    )


def _kernel(name: str) -> str:
    """Return the name of a kernel's class as vLLM's linear_backend writes it: FlashInferCutlass, flashinfer_cutlass."""
    words = name.replace("FlashInfer", "Flashinfer").replace("CuteDsl", "Cutedsl")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", words).lower()


def _format(logged_as: str, config: str) -> str | None:
    """Return the format of a cache; `auto`, as far as vLLM resolves it, is the type of the activations."""
    if logged_as == "auto":
        of_model = _TYPE.search(config)
        logged_as = of_model[1] if of_model else ""
    return {"": None, "bfloat16": "bf16"}.get(logged_as, "fp8" if logged_as.startswith("fp8") else logged_as)


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """CUDA graphs that a running server lacks."""

    modes: GraphModes
    hurts: bool
    """Whether it so drafts more slowly than it would without; on memory as slow as a Spark's it does not."""
    next: str
    """The command that brings them back, or that prints what would."""

    def __str__(self) -> str:
        """Return it in one sentence."""
        modes = self.modes
        if self.hurts:
            cost = f"; slower than no draft: {COST}"
        else:
            cost = ""
        return f"CUDA graphs: {modes.words()}: {modes.why}; {modes.fix}{cost}"


def graphs_lost(
    started: Started,
    log: Logged | None = None,
    *,
    profile: Profile | None = None,
    engine: Engine | None = None,
) -> Graphs | None:
    """Return what a running server that drafts on a GPU lacks: as its log, else its vLLM has it; None for nothing.

    `profile` is what it serves, where that was read.
    """
    from gemmaspec.core.profile.machines import MACHINES
    from gemmaspec.run.kept.served_profile import profile_of

    profile = profile or profile_of(started)
    if profile is None or not profile.speculative or not MACHINES[profile.machine].gpus:
        return None
    resolved, log = resolved_of(profile), log or of_running(started, engine)
    modes = known(resolved.graphs)
    if log.mode:
        modes = as_logged(resolved, log.mode, eager_draft=log.eager_draft)
    if modes is None or not modes.lost:
        return None
    name, backend = started.server.name, re.search(r"serve\.attention_backend: ([A-Z_]+)", modes.fix)
    if backend:
        mends = f"gemmaspec restart {name} --set serve.attention_backend={backend[1]}"
    else:
        mends = ""
    return Graphs(modes=modes, hurts=hurts(profile, modes), next=mends or f"gemmaspec profile lint {started.profile}")


def of_running(started: Started, engine: Engine | None = None) -> Logged:
    """Return what a server logged; nothing if its log cannot be read, or is of another vLLM."""
    from gemmaspec.run.kept import stacks

    with contextlib.suppress(GemmaspecError, OSError):
        return logged((engine or stacks.engine_of(started)).logs(started.server))
    return Logged()


def words(chosen: Backends) -> str:
    """Return the backends for people; empty where none is known."""
    known = any(chosen.values())
    if known:
        return ", ".join(f"{role} {name or 'unknown'}" for role, name in chosen.items())
    return ""
