"""The few lines of `gemmaspec predict`, from its `--json` document: the fastest k of each load, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from gemmaspec.check.fit.unknown import unknown_speed
from gemmaspec.cli.text import page
from gemmaspec.cli.text.predict import counted

Document = Mapping[str, Any]
Row = Mapping[str, Any]


def lines(document: Document) -> Iterator[str]:
    """Yield the fastest k of each number of requests, how far the profile's is from it, the basis and what is open."""
    rows: list[Row] = document["rows"]
    where = f"{document['profile']} on {document['machine']}"
    if not rows:
        return (yield from page.lines(f"{where}: no figure", _without_figure(document)))
    prompt = any(row["ttft_ms"] for row in rows)
    basis = document["why"].partition(": ")[0]
    title = f"{where}, from {basis}: tokens/s {counted(prompt=prompt)} at the fastest k (90 % interval)"
    loads = dict.fromkeys(row["concurrency"] for row in rows)
    said: list[tuple[str, str | None]] = [(f"{load} at once", _at(load, rows)) for load in loads]
    said.append(("the profile", _own(document)))
    said += [("warning", warning) for warning in document["warnings"]]
    said += [("change", table) for table in _tables(document)]
    said.append(("unknown", _unknown(document)))
    yield from page.lines(title, said)


def _without_figure(document: Document) -> Iterator[tuple[str, str | None]]:
    notes: list[str] = document["notes"]
    yield "why", "; ".join(document["doubts"]) or document["why"]
    for warning in document["warnings"]:
        yield "warning", warning
    yield "bound", "; ".join(note for note in notes if note.startswith("at most ")) or None
    yield "measure", next((note for note in notes if note.startswith("gemmaspec bench ")), None)


def _servers(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the rows of each server and prompt length: those that differ in nothing but their draft and its length."""
    apart = ("compile", "vllm", "attention_backend", "images", "kv_cache_dtype", "linear_kernel", "patches", "context")
    for _, group in groupby(rows, key=lambda row: [row.get(key) for key in apart]):
        yield list(group)


def _at(load: int, rows: Sequence[Row]) -> str:
    said = []
    for server in _servers(rows):
        at_load = [row for row in server if row["concurrency"] == load]
        if at_load:
            said.append(_fastest(at_load))
    return "; ".join(said)


def _rate(tokens_per_second: float) -> str:
    if tokens_per_second >= 100:
        return f"{tokens_per_second:,.0f}"
    return f"{tokens_per_second:,.1f}"


def _fastest(rows: Sequence[Row]) -> str:
    best = max(rows, key=lambda row: row["tokens_per_second"])
    low, high = map(_rate, best["interval"])
    methods = {row["method"] for row in rows if row["k"]}
    drafts = f"k={best['k']}" if best["k"] else "no draft"
    if best["k"] and len(methods) > 1:
        drafts = f"{best['method']} {drafts}"
    if best["k"] and best["speedup"]:
        times = f", {best['speedup']:.2f} times"
    else:
        times = ""
    return f"after {best['context']:,} tokens: {best['tokens_per_second']:,.1f} ({low} to {high}) with {drafts}{times}"


def _own(document: Document) -> str | None:
    """Return by how much the profile's own k is slower than the fastest, at most; None where it drafts with none."""
    own: Mapping[int, int] = document["own_k"]
    slower = [0.0]
    for server in _servers(document["rows"]):
        for load, k in own.items():
            rates = {row["k"]: row["tokens_per_second"] for row in server if row["concurrency"] == load}
            if k in rates:
                slower.append(1 - rates[k] / max(rates.values()))
    if not own or len(slower) == 1:
        return None
    drafts = " and ".join(f"k={k}" for k in dict.fromkeys(own.values()))
    worst = max(slower)
    return f"drafts with {drafts}, " + (f"at most {worst:.0%} slower" if worst >= 0.005 else "the fastest of these")


def _tables(document: Document) -> Iterator[str]:
    """Yield the table of k by requests of each server that gains by one."""
    for server in document["envelope"]:
        if table := server["k_by_requests"]:
            shown = ", ".join(f"{start}: {k}" for start, k in table.items())
            yield f"k_by_requests: {{{shown}}} is faster after {server['context']:,} tokens; gemmaspec tune measures it"


def _unknown(document: Document) -> str:
    return "; ".join([*(list(unknown_speed(document)) or ["nothing was assumed"]), "every k: --explain"])
