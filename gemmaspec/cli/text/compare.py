"""What `gemmaspec compare` prints for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gemmaspec.bench.compare import CellChange, Comparison

_SHOWN = 60


def lines(found: Comparison, a: str, b: str) -> Iterator[str]:
    """The whole answer."""
    yield f"A  {a}"
    yield f"B  {b}"
    yield ""
    yield "what differs"
    for one in found.differences:
        yield f"  {one.what:<32}{_short(one.a)} → {_short(one.b)}"
    if not found.differences:
        yield "  nothing: the same profile, stack and settings"
    yield ""
    yield (
        f"  {'method':<22}{'k':>8}{'at once':>9}{'context':>9}{'A tok/s':>10}{'B tok/s':>10}{'change':>9}{'noise':>8}"
        f"{'E(k)':>14}{'ms a step':>18}"
    )
    for change in found.changes:
        yield _line(change)
    for name, side in ((found.only_a, "A"), (found.only_b, "B")):
        yield from (f"  only in {side}: {one}" for one in name)
    yield ""
    yield _verdict(found)


def _line(one: CellChange) -> str:
    verdict = "  slower" if one.slower else "  faster" if one.faster else ""
    accepted = f"{one.a['acceptance_length']:.2f} → {one.b['acceptance_length']:.2f}"
    steps = f"{one.a['step_ms']:.2f} → {one.b['step_ms']:.2f}"
    return (
        f"  {one.method:<22}{one.k:>8}{one.concurrency:>9}{one.context:>9,}{one.a['tokens_per_second']:>10,.1f}"
        f"{one.b['tokens_per_second']:>10,.1f}{one.change:>+9.1%}{one.noise:>8.1%}{accepted:>14}{steps:>18}{verdict}"
    )


def _verdict(found: Comparison) -> str:
    slower = sum(one.slower for one in found.changes)
    faster = sum(one.faster for one in found.changes)
    same = len(found.changes) - slower - faster
    return f"of {len(found.changes)} cells B is faster in {faster}, slower in {slower}, the same within noise in {same}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = "".join(char for char in text if char.isprintable())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
