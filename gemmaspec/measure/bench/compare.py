"""Compare two results: what differs, and its effect on speed. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemmaspec.core.errors import UsageError
from gemmaspec.measure.bench.result import spread_of
from gemmaspec.measure.bench.rows import alike, nearest, patch_set, said

TOLERANCE: Final = 0.02
"""Relative change that counts as noise, unless the rounds themselves differ by more."""
_NOT_COMPARED: Final = frozenset(
    {"profile", "rounds", "repeats", "url", "running", "concurrencies", "contexts", "ks", "patches"}
)
"""Settings that change which cells are measured, but not the result of a cell."""
_FIGURES: Final = (
    "tokens_per_second",
    "spread",
    "step_ms",
    "acceptance_length",
    "ttft_ms",
    "k",
    "concurrency",
    "context",
)


@dataclass(frozen=True, kw_only=True)
class RunDifference:
    """One difference between the runs."""

    what: str
    """Its key: lock.image.digest, serve.max_num_seqs, settings.max_tokens …"""
    a: Any
    b: Any


@dataclass(frozen=True, kw_only=True)
class CellChange:
    """One cell in both."""

    method: str
    """The method, or A → B if the methods differ."""
    patches: str
    """The patches for speed, or A → B if they differ."""
    k: str
    concurrency: int
    context: int
    a: Mapping[str, Any]
    b: Mapping[str, Any]
    noise: float
    """Relative change that is noise here."""
    assumed: bool = False
    """Whether `noise` is TOLERANCE because neither result has two rounds of this cell that count."""

    @property
    def steady(self) -> bool:
        """Whether the machine was equally fast before and after the cell, in both results."""
        return bool(self.a.get("steady", True) and self.b.get("steady", True))

    @property
    def change(self) -> float:
        """Tokens per second of B over A, minus 1."""
        return float(self.b["tokens_per_second"]) / float(self.a["tokens_per_second"]) - 1

    @property
    def verdict(self) -> str:
        """slower, faster, or the same within noise."""
        if self.slower:
            return "slower"
        if self.faster:
            return "faster"
        return "same"

    @property
    def slower(self) -> bool:
        """Whether B is slower by more than noise."""
        return self.change < -self.noise

    @property
    def faster(self) -> bool:
        """Whether B is faster by more than noise."""
        return self.change > self.noise

    def document(self) -> dict[str, Any]:
        """Return the cell for machines."""
        cell = {name: getattr(self, name) for name in ("method", "patches", "k", "concurrency", "context")}
        a = {name: self.a.get(name) for name in _FIGURES}
        b = {name: self.b.get(name) for name in _FIGURES}
        judged = {name: getattr(self, name) for name in ("change", "noise", "steady", "verdict")}
        return {**cell, "a": a, "b": b, **judged, "noise_assumed": self.assumed}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of two results."""

    differences: tuple[RunDifference, ...]
    changes: tuple[CellChange, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    b_complete: bool = True
    """Whether B measured every cell that it began with."""

    @property
    def slower(self) -> bool:
        """Whether any cell is slower by more than noise."""
        return any(change.slower for change in self.changes)

    @property
    def lost(self) -> bool:
        """Whether cells of A are missing in B because B's run failed or was interrupted: they may be slower."""
        return bool(self.only_a) and not self.b_complete


def compare(a: Mapping[str, Any], b: Mapping[str, Any], *, tolerance: float | None = None) -> Comparison:
    """Compare two results. `tolerance` is the noise to ignore; default: TOLERANCE or the spread of a cell's rounds.

    Raises UsageError if no cell is in both.
    """
    pairs = list(_pairs(a["rows"], b["rows"]))
    if not pairs:
        raise UsageError(
            f"the two results have no cells to compare: A measured {_measured(a['rows'])}; B measured "
            f"{_measured(b['rows'])}",
            hint="gemmaspec bench PROFILE --k 0,4 --concurrency 1 --context 256    # the same loads in both",
        )
    changes = tuple(_change(before, other, tolerance) for before, other in pairs)
    of_a, of_b = zip(*pairs, strict=True)
    return Comparison(
        differences=tuple(_differences(a, b, pairs)),
        changes=changes,
        only_a=_alone(a["rows"], of_a),
        only_b=_alone(b["rows"], of_b),
        b_complete=bool(b.get("complete", True)),
    )


def _alone(rows: Sequence[Mapping[str, Any]], matched: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the rows that no row of the other result was compared with."""
    # by identity, because two rows may be equal
    taken = {id(row) for row in matched}
    return tuple(_name(row) for row in rows if id(row) not in taken)


def _pairs(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the common cells: first those of equal method and k, then of what is left those of different ones, where
    that leaves no choice: each result has one k (0 with 4), or one besides no speculation (2 with 4, one head with
    another).

    Of several with different patches for speed, those with the most similar patches are paired.
    """
    left, alone = list(b), []
    for mine in a:
        same_kind = [row for row in left if _kind(mine) == _kind(row)]
        if other := nearest(mine, [row for row in same_kind if alike(mine, row)]):
            left.remove(other)
            yield mine, other
        else:
            alone.append(mine)
    single = len({_kind(row) for row in a}) == len({_kind(row) for row in b}) == 1
    drafts = len({_kind(row) for row in a if row["k"]}) == len({_kind(row) for row in b if row["k"]}) == 1
    if not single and drafts:  # what does not draft has no pair in another kind
        alone = [row for row in alone if row["k"]]
        left = [row for row in left if row["k"]]
    if single or drafts:
        for mine in alone:
            if other := nearest(mine, [row for row in left if alike(mine, row)]):
                left.remove(other)
                yield mine, other


def _kind(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return row["method"], row["k"]


def _measured(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return in short what a result has: its methods and k, requests at once and lengths of prompts."""
    if not rows:
        return "nothing"
    kinds: dict[str, None] = {}
    for row in rows:
        kinds[f"{row['method']} k={row['k']}" if row["k"] else "no speculation"] = None
    loads = sorted({row["concurrency"] for row in rows})
    contexts = sorted({row["context"] for row in rows})
    shown = ", ".join(f"{tokens:,}" for tokens in contexts)
    return f"{', '.join(kinds)} with {', '.join(map(str, loads))} at once and {shown} tokens of prompt"


def _arm(row: Mapping[str, Any]) -> str:
    return str(row.get("arm") or f"{row['method']}/{row['k']}")


def _compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _NOT_COMPARED}


def _change(a: Mapping[str, Any], b: Mapping[str, Any], tolerance: float | None) -> CellChange:
    spreads = [percent for percent in (spread_of(a), spread_of(b)) if percent is not None]
    if tolerance is None:
        noise = max([TOLERANCE, *spreads])
    else:
        noise = tolerance
    assumed = tolerance is None and not spreads
    return CellChange(
        method=_from_to(a["method"], b["method"]),
        patches=_from_to(said(a), said(b)),
        k=_from_to(a["k"], b["k"]),
        concurrency=a["concurrency"],
        context=a["context"],
        a=a,
        b=b,
        noise=noise,
        assumed=assumed,
    )


def _from_to(a: object, b: object) -> str:
    if a == b:
        return str(a)
    return f"{a} → {b}"


def _name(row: Mapping[str, Any]) -> str:
    patches = f", patches {said(row)}" if patch_set(row) else ""
    return f"{row['method']} k={row['k']}, {row['concurrency']} concurrent, {row['context']} prompt tokens{patches}"


def _differences(
    a: Mapping[str, Any], b: Mapping[str, Any], pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> Iterator[RunDifference]:
    yield from _of_maps("profile", a["profile"], b["profile"])
    yield from _of_maps("gemmaspec", a.get("gemmaspec"), b.get("gemmaspec"))
    for name in ("machine", "gpu", "driver"):
        yield from _of_maps(name, a["provenance"].get(name), b["provenance"].get(name))
    yield from _of_maps("settings", _compared(a["settings"]), _compared(b["settings"]))
    arms_a = a["provenance"].get("arms") or {}
    arms_b = b["provenance"].get("arms") or {}
    seen = set()
    for before, other in pairs:
        facts = (arms_a.get(_arm(before)), arms_b.get(_arm(other)))
        for difference in _of_maps("", *facts):
            key = json.dumps([difference.what, difference.a, difference.b], default=str)
            if key not in seen and not difference.what.startswith("overrides"):
                seen.add(key)
                yield difference


def _of_maps(name: str, a: Any, b: Any) -> Iterator[RunDifference]:
    """Yield the leaves that differ, by dotted name."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys((*a, *b)):
            yield from _of_maps(f"{name}.{key}" if name else str(key), a.get(key), b.get(key))
    elif a != b:
        yield RunDifference(what=name or "what it ran", a=a, b=b)
