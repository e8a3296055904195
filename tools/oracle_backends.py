"""Ask releases which attention backend each layer of Gemma 4 takes, and keep the answers (`oracle.py backends`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import oracle

from gemmaspec.files import write_whole
from gemmaspec.releases import spans
from gemmaspec.releases.facts import releases

DATA: Final = Path(__file__).parent.parent / "gemmaspec" / "releases" / "data" / "backends.json"
MACHINES: Final = {"8.0": "a100", "8.9": "l40s", "9.0": "h200", "10.0": "b200", "12.0": "rtx-5090", "12.1": "gb10"}
"""Compute capability → a machine that has it."""
_PLAIN: Final = ("--limit-mm-per-prompt", '{"image": 0, "video": 0, "audio": 0}')


def ask_about(wanted: Iterable[str]) -> int:
    """Ask each release, write the table, and return the number of releases that gave no answer."""
    silent = 0
    for release in wanted:
        with oracle.Oracle(release, "h200") as asked:
            rows = list(_rows(asked))
        print(f"vllm {release}: {len(rows)} answers", flush=True)
        silent += not rows
        _keep(release, rows)
    return silent


def _rows(asked: oracle.Oracle) -> Iterator[tuple[str, ...]]:
    """Yield capability, masks, KV format, role, backend."""
    models = oracle.model_folders()
    head = {"model": str(models / "gemma-4-31B-it-assistant"), "method": "mtp", "num_speculative_tokens": 2}
    for capability, machine in MACHINES.items():
        for masks, images in (("masks", ()), ("causal", _PLAIN)):
            for kv in ("auto", "fp8"):
                argv = ["--model", str(models / "gemma-4-31B-it"), "--kv-cache-dtype", kv, *images]
                drafted = [*argv, "--speculative-config", json.dumps(head)]
                answer = _answer(asked, machine, drafted) or _answer(asked, machine, argv)
                for role in ("target", "draft"):
                    kinds = set(answer.get(role, {}).values())
                    if kinds:
                        yield capability, masks, kv, role, " and ".join(sorted(kinds))


def _answer(asked: oracle.Oracle, machine: str, argv: list[str]) -> dict[str, Any]:
    found = asked.ask({"argv": argv, "layers": True, "machine": machine})
    if "broken" in found:
        print(f"  {machine} {argv[2:]}: {found['broken'][:160]}", flush=True)
    return {} if "broken" in found else found


def _keep(release: str, rows: Iterable[tuple[str, ...]]) -> None:
    """Write the answers of a release into the table, in which a span of releases stands behind each backend."""
    known = releases()
    table: dict[tuple[str, ...], set[str]] = {}
    for path, text in _paths(json.loads(DATA.read_text()) if DATA.exists() else {}):
        table[path] = set(spans.read(text, known)) - {release}
    for row in rows:
        table.setdefault(row, set()).add(release)
    nested: dict[str, Any] = {}
    for path, has in sorted(table.items()):
        if has:
            inner = nested
            for part in path[:-1]:
                inner = inner.setdefault(part, {})
            inner[path[-1]] = spans.write(has, known)
    write_whole(DATA, json.dumps(nested, indent=1) + "\n")


def _paths(nested: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, inner in nested.items():
        if isinstance(inner, str):
            yield (*before, name), inner
        else:
            yield from _paths(inner, (*before, name))
