"""What `gemmaspec bench` prints for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemmaspec.bench.report import alone, remarks

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
    yield from (f"  {one}" for one in remarks(document))


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
