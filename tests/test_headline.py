"""README's first figures are rows of the store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gemmaspec.deploy.kept.measurements import Run, store
from tools import headline

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
