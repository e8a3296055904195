"""Which attention backend runs, and which CUDA graphs it keeps: as released vLLMs answered, by release and GPU.

data/backends.json and data/graphs.json were made by building the layers of a 31B and its assistant on torch's meta
device against each release's own selector, with FlashAttention and FlashInfer installed, and by asking their builders
and `resolve_cudagraph_mode_and_sizes` in vllm/config/compilation.py (tools/oracle_backends.py). data/attention.json has
what each backend refuses (tools/oracle_attention.py).
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.releases import spans
from gemmaspec.core.releases.facts import releases

_DATA: Final = Path(__file__).parent / "data"
LEVELS: Final = ("NEVER", "UNIFORM_SINGLE_TOKEN_DECODE", "UNIFORM_BATCH", "ALWAYS")
"""AttentionCGSupport of vllm/v1/attention/backend.py, weakest first."""


def backend_for(vllm: str, capability: str | None, *, masks: bool, fp8: bool, role: str = "target") -> str | None:
    """Return the backend that vLLM chooses where the profile sets none; None for a release or GPU that was not asked.

    `masks`: images are on, and their tokens see later ones, as in 31B, 26B-A4B and 12B. `fp8`: the KV cache's format.
    `role` draft: the head of MTP; eagle3: that of EAGLE. A composite such as TRITON_FLASH_ATTN runs the second for
    causal batches and Triton where an image needs a mask.
    """
    return _at("backends", vllm, capability or "", "masks" if masks else "causal", "fp8" if fp8 else "auto", role)


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The attention backends of target and draft for one format of the KV cache; None where one is not known."""

    fp8: bool
    target: str | None
    draft: str | None


def support_of(
    vllm: str, capability: str | None, backend: str | None, *, fp8: bool, head: str | None, role: str = "target"
) -> str | None:
    """Return what a backend's builder supports with a head; None where it was not recorded.

    `head`: the kind of draft that reads the target's layers or is the role itself: draft (MTP), eagle3, None for none.
    """
    return _at(
        "graphs", vllm, "supports", capability or "", "fp8" if fp8 else "auto", role, backend or "", head or role
    )


def modes_of(vllm: str, *, drafting: bool, compiles: str, graphs: str) -> dict[str, str]:
    """Return the resolved mode, or REFUSED, for each support that a backend may have; {} where it was not recorded.

    `compiles` is default, `mode 0` to `mode 3` or `-O0` to `-O3`; `graphs` the cudagraph_mode asked for, or default.
    """
    path = ("modes", "drafting" if drafting else "alone", compiles, graphs)
    modes = {support: _at("graphs", vllm, *path, support) for support in LEVELS}
    return {support: mode for support, mode in modes.items() if mode}


def refusal_of(vllm: str, capability: str, backend: str, *, masks: bool, cache: str) -> str | None:
    """Return what vLLM has against a backend for Gemma 4's layers; None where it takes it, and where nobody asked.

    `backend`: "" where the profile sets none. `cache`: the format of the KV cache, as vLLM calls it. The answers are of
    each backend's own validate_configuration, and of the selector (tools/oracle_attention.py).
    """
    kind = "masks" if masks else "causal"
    of_any_cache = _at("attention", vllm, backend, kind, "*", capability)
    return of_any_cache or _at("attention", vllm, backend, kind, cache, capability) or None


def _at(table: str, vllm: str, *path: str) -> str | None:
    rows = _table(table)
    for part in path:
        rows = rows.get(part, {})
    return spans.at(rows, vllm, releases())


@functools.cache
def _table(name: str) -> dict[str, Any]:
    rows: dict[str, Any] = json.loads((_DATA / f"{name}.json").read_text(encoding="utf-8"))
    return rows
