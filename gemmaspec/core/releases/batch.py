"""How many tokens a batch has, and how many requests run at once, by default: this depends on the machine.

Source: EngineArgs.get_batch_defaults in vllm/engine/arg_utils.py, for `vllm serve`, every release. The tests compare
these rules with vLLM's own answers for six machines in data/defaults.json (tools/oracle.py)."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.core import launcher
from gemmaspec.core.releases.items import ITEMS

_GIB: Final = 2**30
_LARGE: Final = 70 * _GIB
_LARGEST: Final = 160 * _GIB
_GB10: Final = "12.1"
_DATA: Final = Path(__file__).parent / "data" / "defaults.json"


@dataclass(frozen=True, kw_only=True)
class BatchDefaults:
    """max_num_batched_tokens and max_num_seqs, before a model's longest context or largest image change them."""

    tokens: int
    sequences: int


def batch_defaults(
    vllm: str, *, memory: int, name: str = "", capability: str | None = None, cpu: bool = False, world: int = 1
) -> BatchDefaults:
    """Return the defaults of one release on one machine.

    `memory` is that of one GPU, in bytes; `name` is the driver's name for it; `world` the processes of a CPU server.
    A GB10 never counts as a large GPU: up to 0.32.0 NVML does not report its memory and vLLM assumes 0; 0.33.0 reads
    the memory elsewhere but excludes the GB10 by its compute capability. An A100 is excluded by its name.
    """
    if cpu:
        return BatchDefaults(tokens=2048 * world, sequences=128 * world)
    if capability == _GB10:
        return BatchDefaults(tokens=2048, sequences=256)
    if memory >= _LARGEST and launcher.range_contains(">=0.28.0", vllm):
        return BatchDefaults(tokens=16384, sequences=1024)
    if memory >= _LARGE and "a100" not in name.lower():
        return BatchDefaults(tokens=8192, sequences=1024)
    return BatchDefaults(tokens=2048, sequences=256)


def default_batch(
    tokens: int, *, vllm: str, length: int | None, sequences: int | None, masks: bool, chunked: bool = True
) -> int | None:
    """Return max_num_batched_tokens where nobody sets it; None if it hangs on a length that is not known.

    `tokens` is the machine's default, `masks` whether the target's images are masked: from 0.22 on their largest one
    fits (_set_default_max_num_seqs_and_batched_tokens_args in vllm/engine/arg_utils.py, every release). Without
    chunked prefill the longest prompt fits.
    """
    if not chunked and length is None:
        return None
    if chunked or length is None:
        batch = tokens
    else:
        batch = max(tokens, length)
    if masks and launcher.range_contains(">=0.22.0", vllm):
        batch = max(batch, ITEMS[0].tokens)
    if sequences and length:
        return min(batch, sequences * length)
    return batch


@functools.cache
def asked() -> dict[str, dict[str, dict[str, int | None]]]:
    """Return vLLM's own answers: machine → release → max_num_batched_tokens and max_num_seqs for a 31B and an E2B."""
    rows: dict[str, dict[str, dict[str, int | None]]] = json.loads(_DATA.read_text(encoding="utf-8"))
    return rows
