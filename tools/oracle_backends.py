"""Ask releases which attention backend each layer of Gemma 4 takes, and which CUDA graphs it then gets.

`oracle.py backends` keeps the answers in backends.json and graphs.json with the tables of releases.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from oracle_release import Oracle, model_folders

from gemmaspec.core.files import write_whole
from gemmaspec.core.launcher import range_contains
from gemmaspec.core.releases import spans
from gemmaspec.core.releases.facts import releases

_DATA: Final = Path(__file__).parent.parent / "gemmaspec" / "core" / "releases" / "data"
MACHINES: Final = {
    "8.0": "a100",
    "8.6": "rtx-3090",
    "8.9": "l40s",
    "9.0": "h200",
    "10.0": "b200",
    "12.0": "rtx-5090",
    "12.1": "gb10",
}
"""Compute capability → a machine that has it."""
_PLAIN: Final = ("--limit-mm-per-prompt", '{"image": 0, "video": 0, "audio": 0}')
_HEADS: Final = {"draft": ("mtp", "gemma-4-31B-it-assistant"), "eagle3": ("eagle3", "gemma-4-31B-eagle3-plain")}
"""Role → method and head."""
_SET: Final = ("TRITON_ATTN", "FLASH_ATTN", "FLASHINFER", "TRITON_FLASH_ATTN", "TRITON_FLASHINFER")
"""What a profile may set."""
_COMPOSED: Final = ("9.0", "10.0")
"""Where vLLM has more than one backend for a Gemma 4."""
_MODES: Final = ("", "0", "1", "2", "3")
_GRAPHS: Final = ("", "NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
_LEVELS: Final = ("0", "1", "2", "3")
Row = tuple[str, ...]


def ask_about(wanted: Iterable[str], only: Sequence[str] = ()) -> int:
    """Ask each release, write both tables, and return the number of releases that gave no answer.

    `only`: the compute capabilities to ask about; by default all of them, and what each compilation leaves of graphs.
    """
    silent = 0
    capabilities = tuple(only) or tuple(MACHINES)
    for release in wanted:
        with Oracle(release, "h200") as asked:
            chosen, supports = _layers(asked, release, capabilities)
            modes = set() if only else {("modes", *row) for row in _modes(asked)}
        print(f"vllm {release}: {len(chosen)} backends, {len(supports)} supports, {len(modes)} modes", flush=True)
        silent += not chosen
        again = {("modes",)} if modes else set()
        keep("backends.json", release, chosen, {(capability,) for capability in capabilities})
        again |= {("supports", capability) for capability in capabilities}
        keep("graphs.json", release, supports | modes, again)
    return silent


def _layers(asked: Oracle, release: str, capabilities: Iterable[str]) -> tuple[set[Row], set[Row]]:
    """Return (capability, masks, KV format, role, backend), and (supports, capability, KV format, role, backend, …)."""
    chosen: set[Row] = set()
    supports: set[Row] = set()
    for capability in capabilities:
        machine = MACHINES[capability]
        for kv in ("auto", "fp8"):
            for masks in ("masks", "causal"):
                # up to 0.26 a 31B has masks also where it serves text alone
                size = "E4B" if masks == "causal" and range_contains("<0.27.0", release) else "31B"
                base = ("--kv-cache-dtype", kv, *(_PLAIN if masks == "causal" and size == "31B" else ()))
                rows = dict(_drafted(asked, machine, size, base))
                chosen |= {(capability, masks, kv, role, backend) for role, (backend, _, _) in rows.items()}
                supports |= set(_supports(capability, kv, rows))
            for backend in _SET if capability in _COMPOSED or kv == "auto" else ():
                base = ("--kv-cache-dtype", kv, "--attention-backend", backend)
                supports |= set(
                    _supports(capability, kv, dict(_drafted(asked, machine, "31B", base, heads=("draft",))))
                )
    return chosen, supports


def _drafted(
    asked: Oracle, machine: str, size: str, base: tuple[str, ...], heads: tuple[str, ...] = tuple(_HEADS)
) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield role → backend, support, and the target's support with that head."""
    argv = ["--model", str(model_folders() / f"gemma-4-{size}-it"), *base]
    alone = _answer(asked, machine, argv)
    if backend := _one(alone, "target"):
        yield "target", (backend, alone["supports"]["target"], alone["supports"]["target"])
    for role in heads:
        method, head = _HEADS[role]
        named = str(model_folders() / head.replace("31B", size if role == "draft" else "31B"))
        config = {"model": named, "method": method, "num_speculative_tokens": 2}
        found = _answer(asked, machine, [*argv, "--speculative-config", json.dumps(config)])
        if backend := _one(found, "draft"):
            yield role, (backend, found["supports"]["draft"], found["supports"]["target"])


def _supports(capability: str, kv: str, rows: dict[str, tuple[str, str, str]]) -> Iterator[Row]:
    """Yield the support of the target's backend by what drafts, and of each head's."""
    backend = rows["target"][0] if "target" in rows else ""
    for role, (own, support, beside) in rows.items():
        if backend:
            yield "supports", capability, kv, "target", backend, role, beside
        if role != "target":
            yield "supports", capability, kv, "draft", own, role, support


def _modes(asked: Oracle) -> Iterator[Row]:
    """Yield who decodes, what compiles, which graphs are wanted, support, and the mode that vLLM resolves."""
    models = model_folders()
    head = {"model": str(models / _HEADS["draft"][1]), "method": "mtp", "num_speculative_tokens": 2}
    wanted: dict[str, tuple[str, str, str]] = {}
    for who, more in (("alone", ()), ("drafting", ("--speculative-config", json.dumps(head)))):
        argv = ["--model", str(models / "gemma-4-31B-it"), *more]
        for mode in _MODES:
            for graphs in _GRAPHS:
                keys = {**({"mode": int(mode)} if mode else {}), **({"cudagraph_mode": graphs} if graphs else {})}
                line = [*argv, *(("--compilation-config", json.dumps(keys)) if keys else ())]
                wanted[json.dumps(line)] = (who, (mode and f"mode {mode}") or "default", graphs or "default")
        for level in _LEVELS:
            wanted[json.dumps([*argv, f"-O{level}"])] = (who, f"-O{level}", "default")
    answers = asked.ask({"modes": [json.loads(line) for line in wanted]})
    for line, names in wanted.items():
        found = answers.get(line, {})
        rows = found.items() if isinstance(found, dict) else [(level, "REFUSED") for level in ("ALWAYS", "NEVER")]
        for support, mode in rows:
            yield *names, support, mode


def _one(answer: dict[str, Any], role: str) -> str:
    return " and ".join(sorted(set(answer.get(role, {}).values())))


def _answer(asked: Oracle, machine: str, argv: list[str]) -> dict[str, Any]:
    found = asked.ask({"argv": argv, "layers": True, "machine": machine})
    return {} if "broken" in found else found


def keep(name: str, release: str, rows: Iterable[Row], again: set[Row]) -> None:
    """Write the answers of a release into a table, in which a span of releases stands behind each answer.

    `again`: the beginnings of the rows that were asked; the release's other rows stay.
    """
    known, data = releases(), _DATA / name
    table: dict[Row, set[str]] = {}
    for path, text in _paths(json.loads(data.read_text()) if data.exists() else {}):
        table[path] = set(spans.read(text, known))
        if any(path[: len(begins)] == begins for begins in again):
            table[path].discard(release)
    for row in rows:
        table.setdefault(row, set()).add(release)
    nested: dict[str, Any] = {}
    for path, has in sorted(table.items()):
        if has:
            inner = nested
            for part in path[:-1]:
                inner = inner.setdefault(part, {})
            inner[path[-1]] = spans.write(has, known)
    write_whole(data, json.dumps(nested, indent=1) + "\n")


def _paths(nested: dict[str, Any], before: Row = ()) -> Iterator[tuple[Row, str]]:
    for name, inner in nested.items():
        if isinstance(inner, str):
            yield (*before, name), inner
        else:
            yield from _paths(inner, (*before, name))
