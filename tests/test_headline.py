"""README's first figures are rows of the store."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gemmaspec.deploy.kept.measurements import Run, store
from gemmaspec.rows import parse_rows
from tests.test_bench_compare import result
from tools import headline, store_results

README = Path(__file__).parent.parent / "README.md"


def test_every_figure_of_the_first_lines_is_a_cells() -> None:
    text = README.read_text()
    said = text.split("<!-- headline: made from the code -->")[1].split("<!-- end -->")[0]
    assert " ".join(said.split()) == " ".join(headline.headline().split())
    pairs = re.findall(r"(\d+) \((\d+)\)", said.replace(",", ""))
    assert len(pairs) == 4  # the contexts, and three servers
    rates = {(row.context, round(row.tokens_per_second)) for run in store() for row in run.rows}
    for long, short in pairs[1:]:
        assert {(8192, int(long)), (256, int(short))} <= rates


def test_a_nearer_cell_is_taken_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of the profile as shipped, once somebody has measured them, replace those with a cache set by hand."""
    (images,) = [run for run in store() if any(row.graphs == "piecewise" for row in run.rows)]
    kept = [row for row in images.rows if row.compile == "default"]
    kept += [row.model_copy(update={"graphs": "full", "patches": ("new",)}) for row in kept if row.k]
    shipped = [row.model_copy(update={"kv_cache_dtype": "bf16", "tokens_per_second": 77.0}) for row in kept]
    runs = (*store(), Run(machine="h200", targets=images.targets, source="a test", rows=tuple(shipped)))
    monkeypatch.setattr("tools.headline.store", lambda: runs)
    assert headline.headline().count("77 (77)") == 3
    assert "FP8" not in headline.headline()


def test_results_of_bench_become_a_file_of_the_store() -> None:
    own = result()
    for row in own["rows"]:
        row |= {"machine": "h200", "target": "A/Gemma-31B", "vllm": "0.32.0", "gpu": "NVIDIA H200", "images": True}
        row |= {"graphs": "full", "attention_backend": "TRITON_ATTN", "weights": "dummy"}
    found = store_results.stored([own])
    rows = parse_rows(json.dumps(found), file="made")
    assert [(row.method, row.k, row.concurrency) for row in rows] == [("none", 0, 1), ("none", 0, 8), ("mtp", 4, 1), ("mtp", 4, 8)]  # fmt: skip
    assert {(row.machine, row.images, row.graphs) for row in rows} == {("h200", True, "full")}
    assert "dummy weights" in found["source"]
    assert found["targets"] == ["a/gemma-31b"]
    assert "images" not in found["rows"][0]
