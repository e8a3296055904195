"""What `gemmaspec bench` prints for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def lines(document: Mapping[str, Any], *, format_: str) -> Iterator[str]:
    """The result as a table."""
    if format_ == "llama-bench":
        yield from llama_bench(document)
        return
    rows: Sequence[Row] = document["rows"]
    where = ", ".join(_where(document))
    yield f"{document['profile']} on {where}"
    yield ""
    yield (
        f"  {'method':<12}{'k':>3}{'at once':>9}{'context':>9}{'tok/s':>10}{'±':>7}{'times':>8}{'E(k)':>7}"
        f"{'ms a step':>11}{'first ms':>10}"
    )
    for row in rows:
        yield _line(row, alone(row, rows))
    yield from _remarks(document)


def alone(row: Row, rows: Sequence[Row]) -> Row | None:
    """The row without speculation that a row is compared with."""
    return next((one for one in rows if one["k"] == 0 and _same_cell(one, row)), None)


def _same_cell(one: Row, other: Row) -> bool:
    """Whether both were measured at one concurrency and context; prompts as they are have lengths of their own."""
    near = abs(one["context"] - other["context"]) <= 0.1 * max(one["context"], other["context"])
    return bool(one["concurrency"] == other["concurrency"] and near)


def _where(document: Mapping[str, Any]) -> Iterator[str]:
    found = document["provenance"]
    yield ", ".join(found["gpu"]) if found.get("gpu") else str(found.get("machine"))
    versions = {one.get("vllm") for one in found.get("arms", {}).values() if one.get("vllm")}
    yield from (f"vLLM {version}" for version in sorted(versions))
    yield f"{document['settings']['rounds']} rounds"


def _line(row: Row, base: Row | None) -> str:
    times = f"{row['tokens_per_second'] / base['tokens_per_second']:.2f}" if base and row["k"] else "-"
    mark = "" if row["steady"] else " !"
    return (
        f"  {row['method']:<12}{row['k']:>3}{row['concurrency']:>9}{row['context']:>9,}"
        f"{row['tokens_per_second']:>10,.1f}{row['spread']:>7.1%}{times:>8}{row['acceptance_length']:>7.2f}"
        f"{row['step_ms']:>11.2f}{row['ttft_ms']:>10.1f}{mark}"
    )


def _remarks(document: Mapping[str, Any]) -> Iterator[str]:
    rows, cells = document["rows"], document["cells"]
    if any(not row["steady"] for row in rows):
        yield ""
        yield "  ! the reference step moved by more than 3 % while it was measured: the machine was not the same"
    if any(row.get("acceptance_by") == "synthetic" for row in rows):
        yield "  acceptance is drawn by lot (rejection_sample_method: synthetic): costs are real, E(k) is not"
    if any(cell["foreign_tokens"] for cell in cells):
        yield "  somebody else used the server meanwhile: it generated tokens that nobody here asked for"
    if not document["complete"]:
        yield "  partial: not every cell was measured"


def llama_bench(document: Mapping[str, Any]) -> Iterator[str]:
    """The rows as llama-bench writes its Markdown table."""
    settings = document["settings"]
    yield "| model | method | k | concurrency | test | t/s |"
    yield "| --- | --- | --: | --: | --: | --: |"
    for row in document["rows"]:
        test = f"tg{settings['max_tokens']} @ d{row['context']}"
        spread = row["spread"] * row["tokens_per_second"] / 2
        yield (
            f"| {document['profile']} | {row['method']} | {row['k']} | {row['concurrency']} | {test} | "
            f"{row['tokens_per_second']:.2f} ± {spread:.2f} |"
        )
