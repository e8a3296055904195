"""Which CUDA graphs vLLM keeps, by release: as its own backends and `resolve_cudagraph_mode_and_sizes` answer.

data/graphs.json was made with the layers of data/backends.json: how much of a graph each backend's metadata builder
supports, and the mode that vllm/config/compilation.py resolves from the weakest of them (tools/oracle_backends.py).
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Final

from gemmaspec.releases import spans
from gemmaspec.releases.facts import releases

_DATA: Final = Path(__file__).parent / "data" / "graphs.json"
LEVELS: Final = ("NEVER", "UNIFORM_SINGLE_TOKEN_DECODE", "UNIFORM_BATCH", "ALWAYS")
"""AttentionCGSupport of vllm/v1/attention/backend.py, weakest first."""


def support_of(
    vllm: str, capability: str, backend: str, *, fp8: bool, head: str | None, role: str = "target"
) -> str | None:
    """Return what a backend's builder supports with a head; None where nobody asked.

    `head`: the kind of draft that reads the target's layers or is the role itself: draft (MTP), eagle3, None for none.
    """
    rows = _table()["supports"].get(capability, {}).get("fp8" if fp8 else "auto", {}).get(role, {}).get(backend, {})
    return spans.at(rows.get(head or role, {}), vllm, releases())


def mode_of(vllm: str, *, support: str, drafting: bool, compiles: str, graphs: str) -> str | None:
    """Return the resolved mode, or REFUSED; None where nobody asked.

    `compiles` is default, `mode 0` to `mode 3` or `-O0` to `-O3`; `graphs` the cudagraph_mode asked for, or default.
    """
    rows = _table()["modes"].get("drafting" if drafting else "alone", {}).get(compiles, {}).get(graphs, {})
    return spans.at(rows.get(support, {}), vllm, releases())


@functools.cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8"))
    return found
