"""Ask a release what each GPU holds of a model under tensor parallelism (`oracle.py ranks`).

vLLM's own classes are built on torch's meta device as rank 0 of 1, 2, 4 and 8 GPUs. What each part of the model then
takes is kept in core/checkpoint/published/data/ranks.json, by which `fit` divides a checkpoint's weights: a part is on
each GPU in the share that vLLM's class has there, since towers, rotary tables, norms and a key head too few are whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from oracle_release import Oracle, model_folders

from gemmaspec.core.checkpoint.config import describe
from gemmaspec.core.checkpoint.fields import Fields
from gemmaspec.core.checkpoint.ranks import row_of
from gemmaspec.core.files import write_whole

_DATA: Final = Path(__file__).parent.parent / "gemmaspec/core/checkpoint/published/data/ranks.json"
GPUS: Final = (1, 2, 4, 8)
_PAIRS: Final = (
    ("31B", "mtp", "gemma-4-31B-it-assistant"),
    ("26B-A4B", "mtp", "gemma-4-26B-A4B-it-assistant"),
    ("12B", "mtp", "gemma-4-12B-it-assistant"),
    ("E4B", "mtp", "gemma-4-E4B-it-assistant"),
    ("E2B", "mtp", "gemma-4-E2B-it-assistant"),
    ("31B", "eagle3", "gemma-4-31B-eagle3-plain"),
)
"""Size of the target, method and head. An E2B or E4B that drafts is the same class as the target of that size."""


def ask_about(release: str) -> int:
    """Ask a release, write the table, and return the number of questions without an answer."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    silent = 0
    with Oracle(release, "h200") as asked:
        for size, method, head in _PAIRS:
            for gpus in GPUS:
                found = _answer(asked, size, method, head, gpus)
                print(f"{size} {head} on {gpus}: {found}", flush=True)
                silent += not found
                for name, parts in _rows(size, head, found):
                    table.setdefault(name, {}).setdefault(str(gpus), parts)
    write_whole(_DATA, json.dumps({"vllm": release, "models": table}, indent=1) + "\n")
    return silent


def _answer(asked: Oracle, size: str, method: str, head: str, gpus: int) -> dict[str, dict[str, int]]:
    models = model_folders()
    config = {"model": str(models / head), "method": method, "num_speculative_tokens": 2}
    argv = ["--model", str(models / f"gemma-4-{size}-it"), "--speculative-config", json.dumps(config)]
    found: dict[str, Any] = asked.ask({"argv": argv, "ranks": gpus})
    return {} if "broken" in found else found


def _rows(size: str, head: str, found: dict[str, dict[str, int]]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the row of target and head, and what each part takes."""
    for role, folder in (("target", f"gemma-4-{size}-it"), ("draft", head)):
        if role in found:
            config = json.loads((model_folders() / folder / "config.json").read_text())
            yield row_of(describe(Fields(config, folder)).text), found[role]
