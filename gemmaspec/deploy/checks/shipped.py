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
from gemmaspec.profile.attention import backend_of, images_off
from gemmaspec.profile.command import command_of, compile_of
from gemmaspec.profile.graphs import graph_modes
from gemmaspec.profile.load import Loaded
from gemmaspec.profile.model import Profile
from gemmaspec.profile.runs import vllm_of
from gemmaspec.releases.facts import nearest
from gemmaspec.rows import GRAPH_MODES, NONE, GraphMode, Row, Setting


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
    plain = profile.model_copy(update={"speculative": None, "draft": None})
    return Kind(
        vllm=vllm,
        backend=backend,
        images=not images_off(profile, command),
        kv_cache=_cache(loaded, plan, command.value("--kv-cache-dtype") or "auto"),
        linear_kernel=command.value("--linear-backend"),
        compiled=compiled,
        alone=_graphs(plain, vllm, compiled)[0],
        drafting=_graphs(profile, vllm, compiled),
        patches=frozenset(taken.patches),
        idle=taken.idle,
    )


def _graphs(profile: Profile, vllm: str | None, compiled: str) -> tuple[GraphMode, GraphMode | None]:
    """Return the graphs of target and draft; those of the compilation where nobody asked vLLM."""
    modes = graph_modes(profile, nearest(vllm)) if vllm else None
    target = modes.target if modes else "NONE" if compiled == "eager" else "FULL"
    spec = profile.speculative
    draft = modes.draft if modes else target if spec and spec.method not in ("ngram", "suffix") else None
    return GRAPH_MODES.get(target, "none"), GRAPH_MODES.get(draft or "")


def _cache(loaded: Loaded, plan: MemoryPlan | None, asked: str) -> str | None:
    """Return the format of the cache; None where the checkpoint decides and cannot be read."""
    if asked == "auto":
        from gemmaspec.deploy.checks.planned import plan_of

        with contextlib.suppress(GemmaspecError):
            asked = (plan or plan_of(loaded)).flags.cache_dtype
    return {"auto": None, "bfloat16": "bf16"}.get(asked, "fp8" if asked.startswith("fp8") else asked)
