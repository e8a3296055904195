"""README's first figures are rows of the store."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from gemmaspec.core.releases.facts import newest
from gemmaspec.core.rows import Run, parse_rows
from gemmaspec.run.kept.measurements import store
from tests.measure.test_bench_compare import result
from tools import headline, store_results

README = Path(__file__).parent.parent.parent / "README.md"


def test_every_figure_of_the_first_lines_is_a_cells() -> None:
    text = README.read_text()
    said = text.split("<!-- headline: made from the code -->")[1].split("<!-- end -->")[0]
    assert " ".join(said.split()) == " ".join(headline.headline().split())
    words = " ".join(said.split())
    pair = re.search(r"\*\*(\d+)\*\* tokens per second, and with \*\*(\d+)\*\* .*?: (\d+) and (\d+)\)", words)
    plain = re.search(r"vLLM (\S+), the newest, makes (\d+) and (\d+) with", words)
    own = re.search(r"does not choose its attention, vLLM (\S+) .*? makes (\d+) and (\d+)\.", words)
    assert pair
    assert plain
    assert own
    assert plain[1] == newest(), "the second figure is of the newest vLLM as it comes"
    release = headline.RELEASE
    claims = {
        (release, 256, 4, pair[1]),
        (release, 256, 0, pair[2]),
        (release, 8192, 4, pair[3]),
        (release, 8192, 0, pair[4]),
        (plain[1], 256, 4, plain[2]),
        (plain[1], 8192, 4, plain[3]),
        (own[1], 256, 4, own[2]),
        (own[1], 8192, 4, own[3]),
    }
    rows = [row for run in store() for row in run.rows if row.machine == headline.MACHINE]
    assert claims <= {(row.vllm, row.context, row.k, str(round(row.tokens_per_second))) for row in rows}


def test_vllms_own_choice_is_of_the_newest_release_once_it_is_measured() -> None:
    assert headline.NEWEST in headline.headline()
    assert "was not measured so" in headline.headline()
    runs = [run for run in store() if run.machine == headline.MACHINE]
    newer = [
        dataclasses.replace(
            run,
            rows=tuple(
                row.model_copy(update={"vllm": headline.NEWEST, "tokens_per_second": 55.0})
                for row in run.rows
                if headline.released(row)
            ),
        )
        for run in runs
    ]
    said = headline.headline((*runs, *newer))
    assert f"vLLM {headline.NEWEST} gives up CUDA graphs for it and makes 55 and 55." in said
    assert "was not measured so" not in said


def test_a_cell_of_another_cache_or_without_images_is_none_of_the_profile_as_shipped() -> None:
    shipped = [run for run in store() if run.machine == headline.MACHINE]
    before = headline.headline()

    def but(**other: object) -> tuple[Run, ...]:
        return tuple(
            dataclasses.replace(run, rows=tuple(row.model_copy(update=other) for row in run.rows)) for run in shipped
        )

    for other in ({"kv_cache_dtype": "fp8"}, {"images": False}, {"images": None}, {"compile": "none"}):
        assert headline.headline((*store(), *but(tokens_per_second=1.0, **other))) == before
    slower = headline.headline(but(tokens_per_second=7.0))
    assert "**7** tokens per second" in slower
    assert ": 7 and 7)" in slower


def test_results_of_bench_become_a_file_of_the_store() -> None:
    own = result()
    for row in own["rows"]:
        row |= {"machine": "h200", "target": "A/Gemma-31B", "vllm": "0.32.0", "gpu": "NVIDIA H200", "images": True}
        row |= {"graphs": "full", "attention_backend": "TRITON_ATTN", "weights": "dummy"}
    own["rows"][0]["steady"] = False
    found = store_results.stored([own])
    rows = parse_rows(json.dumps(found), file="made")
    assert [(row.method, row.k, row.concurrency) for row in rows] == [("none", 0, 1), ("none", 0, 8), ("mtp", 4, 1), ("mtp", 4, 8)]  # fmt: skip
    assert {(row.machine, row.images, row.graphs) for row in rows} == {("h200", True, "full")}
    assert "dummy weights" in found["source"]
    assert [row.get("steady") for row in found["rows"]] == [False, None, None, None]
    assert found["targets"] == ["a/gemma-31b"]
    assert "images" not in found["rows"][0]
