"""Ask releases what each attention backend has against the layers of Gemma 4 (`oracle.py attention`).

Each backend's own validate_configuration answers, and the selector where no backend is set. Only refusals are kept, in
core/releases/data/attention.json: backend ("" where none is set) → masks or causal → KV format, or "*" for what is so
with all of them → compute capability → reasons → releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from oracle_backends import MACHINES, Row, keep
from oracle_release import Oracle, model_folders

_MASKS = {"False": "causal", "True": "masks"}
Answers = Mapping[str, Mapping[str, Mapping[str, list[str]]]]
"""Backend → KV format → whether images are masked → reasons."""


def ask_about(wanted: Iterable[str]) -> int:
    """Ask each release, write the table, and return the number of releases that gave no answer."""
    silent = 0
    for release in wanted:
        rows: set[Row] = set()
        with Oracle(release, "h200") as asked:
            for capability, machine in MACHINES.items():
                argv = ["--model", str(model_folders() / "gemma-4-31B-it")]
                found = asked.ask({"argv": argv, "refusals": True, "machine": machine})
                rows |= set() if "broken" in found else set(_rows(found, capability))
        print(f"vllm {release}: {len(rows)} refusals", flush=True)
        silent += not rows
        keep("attention.json", release, rows, {()})
    return silent


def _rows(found: Answers, capability: str) -> Iterator[Row]:
    """Yield backend, masks, KV format, capability and reasons."""
    for backend, formats in found.items():
        for key, masks in _MASKS.items():
            reasons = {kv: answers[key] for kv, answers in formats.items()}
            always = [one for one in next(iter(reasons.values())) if all(one in each for each in reasons.values())]
            if always:
                yield backend, masks, "*", capability, "; ".join(always)
                continue
            for kv, against in reasons.items():
                if against:
                    yield backend, masks, kv, capability, "; ".join(against)
