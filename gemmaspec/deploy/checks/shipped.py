"""The shipped cells that speak for a profile's server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from gemmaspec.deploy.kept import measurements
from gemmaspec.deploy.kept.measurements import Taken
from gemmaspec.errors import GemmaspecError
from gemmaspec.fit.memory_plan import MemoryPlan
from gemmaspec.predict.speaks import Kind, Spoken, speaking
from gemmaspec.profile.attention import backend_of
from gemmaspec.profile.command import command_of, compile_of
from gemmaspec.profile.graphs import keeps_graphs
from gemmaspec.profile.load import Loaded
from gemmaspec.profile.model import Profile
from gemmaspec.profile.runs import vllm_of
from gemmaspec.rows import NONE, GraphMode, Row, Setting


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """What the store says of a profile."""

    kind: Kind
    spoken: Spoken
    sources: tuple[str, ...]


def shipped_for(loaded: Loaded, taken: Taken, plan: MemoryPlan | None = None) -> Shipped | None:
    """Return the rows of the store that speak for a profile; None where none is of its machine and target."""
    profile = loaded.profile
    runs = measurements.like(profile)
    method = profile.speculative.method if profile.speculative else NONE
    rows = _once(row for run in runs for row in run.rows if row.method in (method, NONE))
    if not rows:
        return None
    kind = kind_of(loaded, taken, plan)
    spoken = speaking(rows, kind)
    cells = {(row.method, row.k, row.concurrency, row.context) for row in spoken.rows}
    own = [
        run.source
        for run in runs
        if any((row.method, row.k, row.concurrency, row.context) in cells for row in speaking(run.rows, kind).rows)
    ]
    return Shipped(kind=kind, spoken=spoken, sources=tuple(dict.fromkeys(own or (run.source for run in runs))))


def _once(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return rows without copies: patches share cells."""
    return tuple({row.model_dump_json(): row for row in rows}.values())


def kind_of(loaded: Loaded, taken: Taken, plan: MemoryPlan | None = None) -> Kind:
    """Return what a profile's server will be. `plan`: its memory, where it is known."""
    profile = loaded.profile
    vllm, command = vllm_of(profile), command_of(profile)
    compiled = Setting(compile=compile_of(profile)).graphs
    backend = backend_of(profile, vllm) if vllm else None
    limits = profile.serve.limit_mm_per_prompt or {}
    off = {name for name, most in limits.items() if most == 0}
    images = not (command.switched("--language-model-only") or {"image", "video"} <= off)
    alone: GraphMode = "none" if compiled == "eager" else "full"
    return Kind(
        vllm=vllm,
        backend=backend,
        images=images,
        kv_cache=_cache(loaded, plan, command.value("--kv-cache-dtype") or "auto"),
        linear_kernel=command.value("--linear-backend"),
        compiled=compiled,
        alone=alone,
        drafting=_drafting(profile, backend, alone, compiled == "compiled"),
        patches=frozenset(taken.patches),
        idle=taken.idle,
    )


def _drafting(
    profile: Profile, backend: str | None, alone: GraphMode, compiles: bool
) -> tuple[GraphMode | None, GraphMode | None]:
    """Return the graphs of target and draft; vllm/v1/attention/backends/composite.py, from 0.30.0."""
    spec = profile.speculative
    head = None if spec is None or spec.method in ("ngram", "suffix") else alone
    if alone == "full" and backend in ("TRITON_FLASH_ATTN", "TRITON_FLASHINFER") and not keeps_graphs(profile):
        return "piecewise" if compiles else "none", head and "none"
    return alone, head


def _cache(loaded: Loaded, plan: MemoryPlan | None, asked: str) -> str | None:
    """Return the format of the cache; None where the checkpoint decides and cannot be read."""
    if asked == "auto":
        from gemmaspec.deploy.checks.planned import plan_of

        with contextlib.suppress(GemmaspecError):
            asked = (plan or plan_of(loaded)).flags.cache_dtype
    return {"auto": None, "bfloat16": "bf16"}.get(asked, "fp8" if asked.startswith("fp8") else asked)
