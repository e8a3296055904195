"""Predicting speed: the rows it takes, and how near it comes to cells that it has not seen."""

from __future__ import annotations

import itertools
import json
import math
import random
import resource
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.check.predict.algebra import Cholesky
from gemmaspec.check.predict.comparable import Kind, comparable_rows
from gemmaspec.check.predict.curve import curve
from gemmaspec.check.predict.efficiency import law_of
from gemmaspec.check.predict.predict import Cells, Predicted, predict
from gemmaspec.check.predict.steps import StepAt, Steps, StepServer, Timed, graph_tokens
from gemmaspec.check.use_cases.predict import SURE
from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.resolved.resolve import resolved_of
from gemmaspec.core.rows import Row, parse_rows
from gemmaspec.run.kept import measurements
from gemmaspec.run.kept.measurements import store
from tests.support import hub
from tests.support.fake_nvidia_smi import FakeNvidiaSmi, card

ROOT = Path(__file__).parent.parent.parent
H200 = ROOT / "tests" / "data" / "speed-h200-31b.json"
SHIPPED = sorted((ROOT / "measurements").glob("*.json"))
NEWER = ROOT / "measurements" / "h200-31b-nvfp4-0.32.0.json"


def row(**other: Any) -> dict[str, Any]:
    """A row of a target alone, or what is asked for."""
    own = {"method": "none", "k": 0, "concurrency": 1, "context": 256, "acceptance": [], "tokens_per_second": 90.0}
    return own | {"compile": "default"} | other


def drafted(k: int = 2, **other: Any) -> dict[str, Any]:
    """A row with speculation."""
    return row(**{"method": "mtp", "k": k, "acceptance": [0.7**i for i in range(1, k + 1)], **other})


def rows(*given: dict[str, Any]) -> tuple[Row, ...]:
    return parse_rows(json.dumps({"rows": list(given)}), file="measured.json")


def synthetic(k: int, b: int, context: int = 256) -> dict[str, Any]:
    """A row of a machine whose step is known: 10 ms, 0.2 for each token, 2 for speculating, 0.5 for each draft."""
    step = 0.010 + 0.0002 * b * (k + 1) + (0.002 + 0.0005 * k if k else 0) + 1e-8 * b * (context - 256)
    return (drafted if k else row)(k=k, concurrency=b, context=context, tokens_per_second=None, step_ms=step * 1000)


def test_a_row_says_its_step_by_either_figure() -> None:
    by_speed, by_step = rows(
        drafted(concurrency=4, tokens_per_second=365.0), drafted(tokens_per_second=None, step_ms=24)
    )
    assert by_speed.step == pytest.approx(4 * 2.19 / 365)
    assert by_step.tokens_per_second == pytest.approx(2.19 / 0.024)


BAD: list[tuple[str, str]] = [
    ("{", "not JSON: line 1, column 2"),
    ("[]", 'has no list "rows"'),
    ('{"rows": []}', "contains no rows"),
    ('{"rows": 3}', 'has no list "rows"'),
    ('{"rows": [7]}', "row 1 is 7, and must be a map"),
    (json.dumps({"rows": [row(tokens_per_second=float("nan"))]}), "holds NaN"),
    (json.dumps({"rows": [row(tokens_per_second=float("inf"))]}), "holds Infinity"),
    (json.dumps({"rows": [row()]}).replace("90.0", "1e999"), "tokens_per_second is inf"),
    ("[" * 100_000, "nested too deep"),
    (json.dumps({"rows": [row()]}).replace("90.0", "9" * 5000), "a number that is too long"),
    (json.dumps({"rows": [row(step_ms=-3.0, tokens_per_second=None)]}), "row 1: step_ms is -3.0, and must be at least"),
    (json.dumps({"rows": [row(tokens_per_second=0)]}), "row 1: tokens_per_second is 0"),
    (json.dumps({"rows": [row(tokens_per_second="fast")]}), 'tokens_per_second is "fast"'),
    (json.dumps({"rows": [row(tokens_per_second=None)]}), "tokens_per_second and step_ms are missing"),
    (json.dumps({"rows": [row(acceptance=[0.5])]}), "row 1: has k 0 and an acceptance"),
    (json.dumps({"rows": [row(method="mtp")]}), "row 1: has the method mtp with k 0"),
    (json.dumps({"rows": [row(k=2)]}), "row 1: has the method none with k 2"),
    (
        json.dumps({"rows": [row(method="magic", k=2)]}),
        'row 1: method is "magic", and must be one of none, draft_model',
    ),
    (json.dumps({"rows": [row(k=True)]}), "row 1: k is true"),
    (json.dumps({"rows": [row(k=-1)]}), "row 1: k is -1"),
    (json.dumps({"rows": [row(), row(concurrency=0)]}), "row 2: concurrency is 0"),
    (json.dumps({"rows": [row(concurrency=1.5)]}), "row 1: concurrency is 1.5"),
    (json.dumps({"rows": [row(context=None)]}), "row 1: context is missing"),
    (json.dumps({"rows": [drafted(acceptance=None)]}), "row 1: acceptance is missing"),
    (json.dumps({"rows": [drafted(acceptance=[0.7])]}), "row 1: acceptance has 1 positions, but k is 2"),
    (json.dumps({"rows": [drafted(acceptance=[0.7, 0.8])]}), "row 1: acceptance increases with the position"),
    (json.dumps({"rows": [drafted(acceptance=[70, 49])]}), "acceptance is 70, and must be a share between 0 and 1"),
    (json.dumps({"rows": [drafted(acceptance="high")]}), 'acceptance is "high", and must be a list'),
    (json.dumps({"rows": [row(machine="h200"), row(machine="dgx-spark")]}), "mixes rows of dgx-spark and h200"),
    (json.dumps({"rows": [row(gpu="A"), row(gpu="B")]}), "mixes rows of A and B"),
    (json.dumps({"rows": [row(), {k: v for k, v in row().items() if k != "compile"}]}), "row 2: compile is missing"),
    (json.dumps({"rows": [row(compile=[1])]}), "row 1: compile is [1]"),
    (json.dumps({"rows": [row()] * 10_001}), "rows; the limit is 10000"),
    *(
        (
            json.dumps({"rows": [{key: value for key, value in row().items() if key != missing}]}),
            f"row 1: {missing} is missing",
        )
        for missing in ("method", "k", "concurrency", "context")
    ),
]


@pytest.mark.parametrize(("text", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_bad_input_is_one_clear_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "measured.json"
    file.write_text(text)
    assert run(["predict", "tiny-cpu", "--measured", str(file), "--json"]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert "Traceback" not in printed.err
    assert len(printed.err.strip().splitlines()) <= 2
    assert json.loads(printed.out)["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--measured", "/no/such/file.json"], "missing file /no/such/file.json"),
        (["--measured", "/dev/zero"], "/dev/zero: not a file"),
        (["--k", "two"], "--k must be a list of whole numbers"),
        (["--k", "-1"], "--k must be a list of whole numbers"),
        (["--k", "65"], "from 0 to 64"),
        (["--concurrency", "0"], "from 1 to"),
        (["--context", "1,,2"], "--context must be a list of whole numbers"),
    ],
)
def test_a_mistake_on_the_command_line_is_told(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", "tiny-cpu", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_no_text_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "measured.json"
    file.write_bytes(b"\xff\xfe\x00")
    assert run(["predict", "tiny-cpu", "--measured", str(file)]) == 2
    assert "not UTF-8 text" in capsys.readouterr().err


def test_the_answer_has_the_form_of_what_it_was_asked_with(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--k", "0,1,2,6", "--concurrency", "1,4,8", "--json"]
    sets = ["--set", "machine=h200", "--set", "serve.max_num_seqs=8"]
    assert run(["predict", "spark-31b-e2b", *sets, "--measured", str(H200), *asked]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["basis"] == "measured"
    found = {(r["method"], r["k"], r["concurrency"]): r for r in document["rows"]}
    drafted = {(method, k, c) for method in ("draft_model", "mtp") for k in (1, 2, 6) for c in (1, 4, 8)}
    expected = drafted | {("none", 0, c) for c in (1, 4, 8)}
    assert {one["compile"] for one in document["rows"]} == {"default"}  # a factor makes one of both
    assert set(found) == expected
    for one in found.values():
        low, high = one["interval"]
        assert low < one["tokens_per_second"] < high
        assert one["context"] == 256
        assert len(one["acceptance"]) == one["k"]
        steps = (1 + sum(one["acceptance"])) * one["concurrency"] / one["step_ms"] * 1000
        assert one["tokens_per_second"] == pytest.approx(steps, rel=1e-5)
    again = parse_rows(json.dumps(document), file="predicted")
    assert len(again) == len(document["rows"])


def test_an_unknown_profile_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "spark-31b-e2", "--measured", str(H200)]) == 2
    assert "did you mean spark-31b-e2b" in capsys.readouterr().err


# How near it comes


def cells(of: Iterable[Row]) -> dict[tuple[Any, ...], float]:
    """Mean tokens per second of each measured cell."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for one in of:
        groups.setdefault((one.setting, one.method, one.k, one.concurrency), []).append(one.tokens_per_second)
    return {key: statistics.mean(values) for key, values in groups.items()}


def errors(measured: tuple[Row, ...], seen: Callable[[Row], bool]) -> list[float]:
    """Relative errors on every cell that was not seen."""
    known = tuple(one for one in measured if seen(one))
    unseen = cells(one for one in measured if not seen(one))
    found = []
    for (setting, method, k, concurrency), speed in unseen.items():
        asked = Cells(ks=(k,), concurrencies=(concurrency,))
        (one,) = [p for p in predict(known, asked) if p.setting == setting and p.method == method]
        found.append(one.tokens_per_second / speed - 1)
    return found


@pytest.fixture(scope="module")
def accuracy() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "accuracy.py"))


@pytest.mark.parametrize(
    ("left", "median", "largest", "held", "width"),
    [
        ("each cell", 0.03, 0.13, 0.95, 1.6),
        ("each k of a method", 0.03, 0.06, 0.95, 1.4),
        ("each number of requests", 0.03, 0.13, 0.95, 1.7),
        ("4 and 8 requests", 0.05, 0.1, 0.95, 4.5),
        ("8,192 tokens at 4 and 8 requests", 0.05, 0.1, 0.95, 1.4),
        ("8,192 tokens", 0.08, 0.13, 0.95, 2.5),
        ("256 tokens with a draft", 0.08, 0.13, 0.95, 4.0),
        ("compiled servers", 0.03, 0.05, 0.95, 1.3),
        ("mtp but for k 4", 0.03, 0.08, 0.95, 1.8),
        ("each cell, 0.26.0", 0.05, 0.08, 0.9, 1.5),
        ("each k of a method, 0.26.0", 0.05, 0.08, 0.9, 1.5),
        ("each number of requests, 0.26.0", 0.05, 0.22, 0.9, 4.5),
    ],
)
def test_what_is_left_out_is_predicted_from_the_rest(
    left: str, median: float, largest: float, held: float, width: float, accuracy: dict[str, Any]
) -> None:
    """With intervals that hold it without being so wide that this says nothing: `width` is upper end over lower."""
    found = accuracy["left_out"](*accuracy["SPLITS"][left])
    assert found
    assert statistics.median(abs(one.error) for one in found) < median
    assert max(abs(one.error) for one in found) < largest
    assert sum(one.held for one in found) >= held * len(found)
    assert max(one.interval[1] / one.interval[0] for one in found) < width


def test_the_readme_says_what_was_computed(accuracy: dict[str, Any]) -> None:
    assert accuracy["in_short"]() in " ".join((ROOT / "README.md").read_text().split())


def test_the_wait_for_the_first_token_is_what_tells_its_step_from_that_of_bench() -> None:
    """As docs/guides/predict.md says: 255 more tokens in steps of bench after the first token give the measured rate."""
    off, longer = [], {}
    for one in (row for row in json.loads(NEWER.read_text())["rows"] if row["context"] == 256):
        tokens, at_once = 1 + sum(one["acceptance"]), one["concurrency"]
        answer_ms = one["ttft_ms"] + 255 / tokens * one["step_ms"]
        off.append(abs(at_once * 256_000 / answer_ms / one["tokens_per_second"] - 1))
        own = tokens * at_once * 1000 / one["tokens_per_second"]
        longer.setdefault(at_once, []).append(own / one["step_ms"] - 1)
    assert max(off) < 0.0355
    assert statistics.median(off) < 0.0055
    assert (min(longer[1]), max(longer[1])) == pytest.approx((0.03, 0.11), abs=0.005)
    assert (min(longer[8]), max(longer[8])) == pytest.approx((0.12, 0.18), abs=0.005)


def test_no_shipped_step_that_drafts_is_shorter_than_one_that_does_not() -> None:
    """Verification reads at least what a step without a draft reads."""
    alone: dict[object, float] = {}
    steps = [(run.source, row) for run in store() for row in run.rows]
    for drafts in (False, True):
        for source, one in steps:
            server = one.machine, one.vllm, one.attention_backend, one.linear_kernel, one.setting.graphs
            cell = source, *server, one.concurrency, one.context
            if not one.k:
                alone[cell] = min(one.step, alone.get(cell, one.step))
            elif drafts:
                assert one.step > 0.97 * alone.get(cell, 0), (source, one)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_files_say_what_their_rows_are(file: Path) -> None:
    head = json.loads(file.read_text())
    assert set(head) == {"schema", "machine", "targets", "date", "source", "note", "by_hand", "same", "rows"}
    assert head["machine"] in MACHINES
    assert head["date"] in head["source"]
    assert all(one.by_lot for one in parse_rows(file.read_text(), file=file.name) if one.k) == (
        "dummy" in head["source"]
    )


@pytest.mark.parametrize("k", [1, 4, 8])
def test_a_k_that_was_not_measured_is_predicted_from_the_other_two(k: int) -> None:
    measured = tuple(one for one in parse_rows(H200.read_text(), file="h200") if one.setting.compile == "none")
    found = errors(measured, lambda one: one.k != k)
    assert len(found) == 2
    assert max(map(abs, found)) < 0.10


def test_five_cells_predict_the_rest_of_a_grid() -> None:
    measured = tuple(one for one in parse_rows(H200.read_text(), file="h200") if one.setting.compile == "none")
    five = {(0, 1), (0, 8), (1, 1), (8, 1), (4, 8)}
    found = errors(measured, lambda one: (one.k, one.concurrency) in five)
    assert len(found) == 3
    assert max(map(abs, found)) < 0.10
    assert statistics.median(map(abs, found)) < 0.05


def grid(ks: Iterable[int], concurrencies: Iterable[int], contexts: Iterable[int] = (256,)) -> tuple[Row, ...]:
    return rows(*(synthetic(k, b, context) for k, b, context in itertools.product(ks, concurrencies, contexts)))


def one_of(found: tuple[Predicted, ...], k: int, concurrency: int, context: int = 256) -> Predicted:
    (one,) = [p for p in found if (p.k, p.concurrency, p.context) == (k, concurrency, context)]
    return one


def test_a_known_machine_is_found_again_between_and_beyond_its_cells() -> None:
    measured = grid((0, 1, 4), (1, 8))
    found = predict(measured, Cells(ks=(0, 1, 2, 3, 6, 8), concurrencies=(1, 2, 4, 8, 16)))
    for one in found:
        true = rows(synthetic(one.k, one.concurrency))[0].tokens_per_second
        beyond = one.concurrency * (one.k + 1) > 72  # another tile of a matrix kernel, which this machine has not
        assert one.tokens_per_second == pytest.approx(true, rel=0.15 if beyond else 0.05), one


def test_context_is_learned_where_it_was_measured() -> None:
    measured = grid((0, 4), (1, 8), (256, 8192))
    found = predict(measured, Cells(ks=(0, 2, 4), concurrencies=(4,), contexts=(4096,)))
    for one in found:
        true = rows(synthetic(one.k, 4, 4096))[0].tokens_per_second
        assert one.tokens_per_second == pytest.approx(true, rel=0.05)


def test_settings_and_methods_never_explain_each_other() -> None:
    own = [synthetic(k, b) for k in (0, 2, 4) for b in (1, 8)]
    slow = [one | {"compile": "eager", "step_ms": one["step_ms"] * 9} for one in own]
    other = [one | {"method": "eagle3", "step_ms": one["step_ms"] * 5} for one in own if one["k"]]
    asked = Cells(ks=(0, 3), concurrencies=(4,))

    def speeds(found: tuple[Predicted, ...]) -> list[tuple[str, float]]:
        return [(p.method, p.tokens_per_second) for p in found if p.setting.compile == "default" and p.method == "mtp"]

    alone = speeds(predict(rows(*own), asked))
    assert len(alone) == 1
    assert speeds(predict(rows(*own, *slow), asked)) == alone
    assert speeds(predict(rows(*own, *other), asked)) == alone


def test_the_order_of_rows_and_a_repeated_row_change_nothing_that_matters() -> None:
    measured = grid((0, 2, 4), (1, 8))
    asked = Cells(ks=(3,), concurrencies=(4,))
    (one,), (turned,), (twice,) = (
        predict(given, asked) for given in (measured, measured[::-1], (*measured, *measured))
    )
    assert turned.tokens_per_second == pytest.approx(one.tokens_per_second)
    assert twice.tokens_per_second == pytest.approx(one.tokens_per_second, rel=0.01)


def test_one_row_alone_gives_a_wide_interval_and_many_a_narrow_one() -> None:
    asked = Cells(ks=(4,), concurrencies=(8,))
    few = predict(rows(synthetic(0, 1)), Cells(ks=(4,), concurrencies=(8,), method="mtp"))[0]
    many = predict(grid((0, 1, 2, 6), (1, 4, 16)), asked)[0]
    assert few.deviation > 0.2
    assert many.deviation < 0.06


def test_without_rows_of_a_draft_the_notes_say_what_is_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "measured.json"
    file.write_text(json.dumps({"rows": [row(), row(concurrency=8, tokens_per_second=600.0)]}))
    assert run(["predict", "tiny-cpu", "--measured", str(file), "--k", "0,4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {r["method"] for r in document["rows"]} == {"none", "draft_model"}
    assert any("the draft's cost is a guess" in note for note in document["notes"])
    assert any("acceptance was not measured" in note for note in document["notes"])


def test_a_curve_goes_on_with_its_conditional_probabilities() -> None:
    measured = rows(drafted(4, acceptance=[0.844, 0.599, 0.385, 0.271], tokens_per_second=55.6))
    found = curve(measured, k=8, context=256)
    assert found.measured == 4
    assert found.rates[:4] == (0.844, 0.599, 0.385, 0.271)
    conditional = statistics.mean([0.599 / 0.844, 0.385 / 0.599, 0.271 / 0.385])
    assert found.rates[4] == pytest.approx(0.271 * conditional)
    assert all(after < before for before, after in itertools.pairwise(found.rates))
    assert found.deviation > 0
    assert curve(measured, k=2, context=256).rates == (0.844, 0.599)
    assert curve(measured, k=2, context=256).deviation == 0


def test_acceptance_by_lot_says_nothing_beside_the_pairs_own() -> None:
    given = rows(drafted(2, acceptance=[0.5, 0.2]), drafted(2, acceptance_by="synthetic"))
    assert curve(given, k=2, context=256).rates == pytest.approx([0.5, 0.2])


@pytest.mark.parametrize("rates", [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
def test_curves_at_the_edge_stay_shares(rates: list[float]) -> None:
    found = curve(rows(drafted(2, acceptance=rates)), k=6, context=256)
    assert all(0 <= rate <= 1 for rate in found.rates)


def test_rows_of_the_same_k_say_what_a_block_draft_accepts() -> None:
    measured = rows(
        drafted(2, method="dflash", acceptance=[0.5, 0.4]), drafted(4, method="dflash", acceptance=[0.9, 0.8, 0.7, 0.6])
    )
    assert curve(measured, k=2, context=256).rates == (0.5, 0.4)


def test_graph_sizes_are_vllms() -> None:
    """Tokens up to 0.30; from 0.31 on requests of k + 1 tokens, up to max_num_seqs (_set_cudagraph_sizes)."""
    old, new, eight = StepServer(), StepServer(padded=True), StepServer(padded=True, sequences=6)
    assert [graph_tokens(StepAt(0, n, 1), old) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 256, 257, 512, 513)] == [
        *(1, 2, 4, 4, 8, 8, 16, 16, 24, 256, 272, 512, 513)
    ]
    assert [graph_tokens(StepAt(4, n, 1), old) for n in (1, 2, 3, 4)] == [8, 16, 16, 24]
    assert [graph_tokens(StepAt(4, n, 1), new) for n in (1, 2, 3, 4, 5, 8, 9)] == [5, 10, 20, 20, 40, 40, 80]
    assert [graph_tokens(StepAt(4, n, 1), eight) for n in (4, 5, 6)] == [20, 30, 30]


def test_steps_of_a_cell_that_was_measured_are_near_it() -> None:
    fit = Steps("mtp", [Timed(StepAt(2, 1, 256), 0.02), Timed(StepAt(0, 1, 256), 0.01)], context=256)
    assert fit.at(StepAt(2, 1, 256)).seconds == pytest.approx(0.02, rel=0.02)


def test_a_system_is_solved() -> None:
    system = Cholesky([[4.0, 1.0], [1.0, 3.0]])
    assert system.solve([1.0, 2.0]) == pytest.approx([1 / 11, 7 / 11])
    assert system.log_determinant == pytest.approx(2.397895, abs=1e-5)


def test_steps_need_a_measurement() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        Steps("mtp", [], context=256)


def test_no_rows_are_so_wild_that_no_number_comes_out() -> None:
    dice = random.Random(5)
    for _ in range(60):
        wild = []
        for _ in range(dice.choice([1, 2, 5, 12])):
            k = dice.choice([0, 1, 4, 64])
            rates = sorted((dice.choice([0.0, 1.0, dice.random()]) for _ in range(k)), reverse=True)
            at = {"concurrency": dice.choice([1, 64, 100_000]), "context": dice.choice([0, 256, 10**6])}
            speed = 10 ** dice.uniform(-5, 8)
            wild.append(row(method="mtp" if k else "none", k=k, acceptance=rates, tokens_per_second=speed, **at))
        asked = Cells(ks=(0, 1, 64), concurrencies=(1, 100_000), contexts=(0, 10**7), method="mtp")
        for one in predict(rows(*wild), asked):
            low, high = one.interval
            assert 0 < low <= one.tokens_per_second <= high < math.inf


FP8 = ("--set", "serve.kv_cache_dtype=fp8", "--set", "serve.attention_backend=null")
"""An FP8 cache, and vLLM's own choice of a backend."""
BY_HAND = (*FP8, "--set", "serve.attention_backend=TRITON_ATTN", "--set", "serve.language_model_only=true")


SPEED = "patches.speed=[triton-group-geometry, triton-launch-params, triton-verify-split-kv, triton-3d-longer-block]"
COMPOSITE = ("--set", "patches.optional=[composite-full-graphs]", "--set", SPEED)


def on_h200(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """What `predict` says of nvidia-31b-mtp on an H200."""
    assert run(["predict", "nvidia-31b-mtp", "--machine", "h200", "--json", *more]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_what_was_measured_as_shipped_is_what_predict_says(capsys: pytest.CaptureFixture[str]) -> None:
    """An H200 was measured before the profile took humming-launch-params."""
    document = on_h200(capsys, "--set", SPEED, "--k", "4", "--concurrency", "1,4,8", "--context", "256,8192")
    steps = {(one["concurrency"], one["context"]): one["step_ms"] for one in document["rows"]}
    assert steps == {
        cell: pytest.approx(ms, rel=0.05) for cell, ms in {(1, 256): 13.2, (4, 256): 14.7, (1, 8192): 16.2}.items()
    }  # and no figure for a load that is far from these cells
    assert sum("too far from what was measured" in note for note in document["notes"]) == 3


def test_rows_of_bench_without_a_draft_are_the_base_of_those_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server without a draft has fewer patches for speed: those that pay only with one are left out."""
    stored = json.loads((data.MEASUREMENTS / "h200-31b-nvfp4-0.32.0-shipped.json").read_text())
    stored["rows"] = [one for one in stored["rows"] if one["graphs"] == "full"]
    (tmp_path / "result.json").write_text(json.dumps(stored))
    document = on_h200(
        capsys, "--measured", str(tmp_path / "result.json"), "--k", "0,4", "--concurrency", "1", "--context", "256"
    )
    assert [one["k"] for one in document["rows"]] == [0, 4]
    assert document["rows"][1]["speedup"] == pytest.approx(2.3, rel=0.1)
    assert not any("is a guess" in note for note in document["notes"])


def test_of_cells_that_were_given_all_is_said_in_which_the_server_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = {"machine": "h100", "images": True, "kv_cache_dtype": "bf16", "linear_kernel": "humming"}
    (tmp_path / "result.json").write_text(json.dumps({"rows": [row(**served), drafted(4, **served)]}))

    def notes(*more: str) -> str:
        asked = ["--machine", "h100", "--measured", str(tmp_path), "--json", *more]
        assert run(["predict", "nvidia-31b-mtp", *asked]) == 0
        return "\n".join(json.loads(capsys.readouterr().out)["notes"])

    assert "these cells have" not in notes()
    for override, said in (
        ("serve.language_model_only=true", "these cells have images: on, and the profile's server off"),
        ("serve.kv_cache_dtype=fp8", "these cells have kv_cache_dtype: bf16, and the profile's server fp8"),
        ("serve.linear_backend=marlin", "these cells have linear_kernel: humming, and the profile's server marlin"),
    ):
        assert said in notes("--set", override)


def test_without_a_backend_named_the_draft_loses(capsys: pytest.CaptureFixture[str]) -> None:
    """Images on: the composite backend loses full graphs beside a draft."""
    document = on_h200(capsys, *FP8, "--k", "0,4", "--concurrency", "1", "--context", "256,8192")
    assert document["basis"] == "shipped"
    steps = {(one["k"], one["context"]): one["step_ms"] for one in document["rows"]}
    for cell, measured in {(0, 256): 11.7, (4, 256): 50.4, (0, 8192): 13.6, (4, 8192): 38.7}.items():
        assert steps[cell] == pytest.approx(measured, rel=0.05), cell
    decoding = {(one["k"], one["context"]): one["decoding_per_second"] for one in document["rows"]}
    assert decoding[4, 256] == pytest.approx(53, rel=0.1)
    assert decoding[4, 256] < decoding[0, 256]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((*COMPOSITE, *FP8), "it has a KV cache in fp8, and the cells have a KV cache in bf16"),
        (
            (*BY_HAND[:6], "--set", SPEED),
            "it has images on and a KV cache in fp8, and the cells have a KV cache in bf16 or images",
        ),
        ((*FP8, "--set", "serve.attention_backend=FLASH_ATTN"), "its attention backend is FLASH_ATTN, and the cells"),
        (
            (*FP8, "--set", "image=vllm/vllm-openai:v0.33.0"),
            "its attention backend is TRITON_FLASH_ATTN, and the cells",
        ),
        ((*FP8, "--set", "serve.linear_backend=marlin"), "its matrices run in marlin"),
        ((*FP8, "--set", "serve.enforce_eager=true"), "its CUDA graphs are"),
        ((*FP8, "--set", "image=vllm/vllm-openai:v0.31.0"), "its vLLM is 0.31.0"),
    ],
)
def test_no_cell_of_another_kind_speaks_for_a_server(
    more: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = on_h200(capsys, *more, "--k", "0,4", "--concurrency", "1", "--context", "8192")
    assert not any(one["k"] for one in document["rows"])
    assert any(said in note for note in document["notes"]), document["notes"]
    assert document["basis"] == "shipped" or any("at most" in note for note in document["notes"])


def test_the_evidence_of_patches_is_read_as_every_other_cell(capsys: pytest.CaptureFixture[str]) -> None:
    """At 8,192 and 32,768 tokens with all patches, not compiled: 17.6 and 21.4 ms, where unpatched cells gave 98."""
    plain = ("--set", 'serve.extra_args=[--compilation-config, \'{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY"}\']')
    by_hand = (*BY_HAND, "--set", SPEED)
    sets = (*by_hand, *plain, "--set", "serve.max_model_len=40000")
    document = on_h200(capsys, *sets, "--k", "4", "--concurrency", "1,4,8", "--context", "8192,32768")
    steps = {(one["concurrency"], one["context"]): one["step_ms"] for one in document["rows"]}
    for cell, measured in {(1, 8192): 17.57, (4, 8192): 23.4, (8, 8192): 28.27, (1, 32768): 21.38}.items():
        assert steps[cell] == pytest.approx(measured, rel=0.06), cell
    compiled = on_h200(capsys, *by_hand, "--k", "4", "--concurrency", "1,4,8", "--context", "256,8192")
    steps = {(one["concurrency"], one["context"]): one["step_ms"] for one in compiled["rows"]}
    known = {(1, 256): 13.58, (4, 256): 16.7, (1, 8192): 15.89, (4, 8192): 21.86}
    for cell, measured in known.items():  # the compiled cells of another day
        assert steps[cell] == pytest.approx(measured, rel=0.1), cell
    assert (8, 256) not in steps  # it would be 17 % off, and says so
    assert any("a server that is uncompiled to a server that is compiled" in note for note in compiled["notes"])


def kind(**other: Any) -> Kind:
    own: dict[str, Any] = {"vllm": "0.32.0", "backend": "TRITON_ATTN", "images": True, "kv_cache": "bf16"}
    modes: dict[str, Any] = {"compiled": "compiled", "alone": "full", "drafting": ("full", "full")}
    rest: dict[str, Any] = {"linear_kernel": None, "patches": frozenset(), "idle": frozenset()}
    return Kind(**{**own, **modes, **rest, **other})


def test_a_measured_factor_converts_and_is_named() -> None:
    def cell(k: int, cache: str, step: float, context: int = 256) -> dict[str, Any]:
        of = {"kv_cache_dtype": cache, "images": True, "graphs": "full", "attention_backend": "TRITON_ATTN"}
        own = {"vllm": "0.32.0", "head_graphs": "full" if k else None, "acceptance_by": "synthetic"}
        given = drafted if k else row
        return given(k=k, context=context, tokens_per_second=None, step_ms=step, **of, **own)

    lone = rows(cell(0, "fp8", 10.0), cell(4, "fp8", 14.0))
    assert not comparable_rows(lone, kind()).rows
    assert "no cells that differ in that alone give a factor" in comparable_rows(lone, kind()).missing[True]
    pairs = (cell(4, "bf16", 15.4), cell(4, "fp8", 16.0, 8192), cell(4, "bf16", 17.6, 8192), cell(4, "fp8", 12.0, 64))
    found = comparable_rows((*lone, *rows(*pairs)), kind())
    (made,) = [one for one in found.rows if one.context == 64]
    assert made.step_ms == pytest.approx(13.2)
    assert made.setting.kv_cache == "bf16"
    assert found.factors == (
        "a KV cache in fp8 to a KV cache in bf16: a step takes 1.100 times as long with a draft (2 measured pairs)",
    )
    assert False in found.missing


@pytest.mark.parametrize(
    ("gpu", "more", "basis"),
    [
        ("NVIDIA H200", (), "shipped"),
        (None, ("--machine", "h200"), "shipped"),
        ("NVIDIA H200", ("--machine", "here"), "shipped"),
        (None, ("--machine", "h100"), "bound"),
        ("NVIDIA H200", ("--machine", "rtx-5090"), "roofline"),
    ],
)
def test_a_profile_for_any_gpu_is_predicted_for_the_machine_at_hand_or_the_one_that_is_named(
    gpu: str | None,
    more: tuple[str, ...],
    basis: str,
    nvidia_smi: FakeNvidiaSmi,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if gpu:
        nvidia_smi.lists(card(gpu, gib=140, capability="9.0"))
    assert run(["predict", "nvidia-31b-mtp", "--json", *FP8, *more]) == 0
    assert json.loads(capsys.readouterr().out)["basis"] == basis


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("m1", "--machine: unknown machine 'm1'; the known ones are dgx-spark"),
        ("here", "gemmaspec does not know the GPU NVIDIA T4"),
    ],
)
def test_a_machine_that_is_not_known_is_told(
    name: str, said: str, nvidia_smi: FakeNvidiaSmi, capsys: pytest.CaptureFixture[str]
) -> None:
    nvidia_smi.lists(card("NVIDIA T4", gib=15, capability="7.5"))
    assert run(["predict", "nvidia-31b-mtp", "--machine", name]) == 2
    assert said in capsys.readouterr().err


def test_cells_of_another_machine_or_target_are_refused_or_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["predict", "spark-31b-mtp", "--k", "0,4", "--concurrency", "1", "--context", "256"]
    assert run([*asked, "--measured", str(NEWER)]) == 2
    assert "its cells are of h200; they say nothing of spark-31b-mtp on dgx-spark" in capsys.readouterr().err
    assert run([*asked, "--measured", str(NEWER), "--accept-other-machine"]) == 0
    assert "which are of h200 (--accept-other-machine)" in capsys.readouterr().out
    file = tmp_path / "measured.json"
    file.write_text(json.dumps({"rows": [row(gpu="NVIDIA GB10", target="google/gemma-4-E2B-it")]}))
    assert run([*asked, "--measured", str(file)]) == 2
    assert "its cells are of google/gemma-4-E2B-it" in capsys.readouterr().err
    file.write_text(json.dumps({"rows": [row()]}))
    assert run([*asked, "--measured", str(file)]) == 0
    assert "do not say on which machine they were measured" in capsys.readouterr().out


def test_loads_that_the_profile_does_not_take_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "nvidia-31b-mtp", "--machine", "h200"]
    assert run([*asked, "--concurrency", "16"]) == 2
    assert "nvidia-31b-mtp runs 8 concurrent requests (serve.max_num_seqs)" in capsys.readouterr().err
    assert run([*asked, "--context", "16300", "--answer-tokens", "256"]) == 2
    assert "with an answer of 256 tokens that is more than nvidia-31b-mtp takes" in capsys.readouterr().err
    assert run(["predict", "spark-31b-e2b", "--json"]) == 0
    assert {one["concurrency"] for one in json.loads(capsys.readouterr().out)["rows"]} == {1}


def test_longer_answers_make_less_of_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    def asked(answer: str) -> dict[str, Any]:
        more = ["--k", "0", "--concurrency", "8", "--context", "8192", "--answer-tokens", answer, "--json"]
        sets = (*BY_HAND, "--set", "patches.speed=off")
        assert run(["predict", "nvidia-31b-mtp", "--machine", "h200", *sets, *more]) == 0
        return dict(json.loads(capsys.readouterr().out)["rows"][0])

    short, long = asked("256"), asked("2000")
    # as measured, where eight prompts together took 1.6 times as long as eight one after the other
    assert short["tokens_per_second"] == pytest.approx(95.62, rel=0.2)
    assert short["step_ms"] == long["step_ms"] < 18  # without others' prompts; bench's step there was 36.4
    prompts = long["ttft_ms"] * 2 / (1 + 1 / 8)  # of all eight, of whom half wait as long as ttft_ms at most
    whole = prompts + 1999 * long["step_ms"]
    assert long["tokens_per_second"] == pytest.approx(8 * 2000 / whole * 1000)


def test_the_first_tokens_of_bursts_are_those_that_bench_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Of nvidia-31b-mtp without its draft, which are medians; only one of these cells alone makes the fit."""
    measured = {1: 851.9, 4: 2091.7, 8: 3730.0}  # patches/gemma4-fused-norms/evidence.json
    asked = ["--machine", "h100", "--k", "0", "--concurrency", "1,4,8", "--context", "8192", "--json"]
    assert run(["predict", "nvidia-31b-mtp", *asked]) == 0
    found = {row["concurrency"]: row["ttft_ms"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert found == {requests: pytest.approx(wait, rel=0.1) for requests, wait in measured.items()}


def test_fit_says_what_predict_says(capsys: pytest.CaptureFixture[str]) -> None:
    for profile, more in (("nvidia-31b-mtp", ["--machine", "h200", *FP8]), ("spark-31b-mtp", [])):
        assert run(["fit", profile, *more, "--cached", "256", "--json"]) in (0, 1)
        fit = json.loads(capsys.readouterr().out)["speed"]
        k = max(one["k"] for one in fit["rows"])
        asked = ["--k", f"0,{k}", "--context", "256", "--concurrency", "1", "--json"]
        assert run(["predict", profile, *more, *asked]) == 0
        said = json.loads(capsys.readouterr().out)
        assert fit == {key: said[key] for key in ("basis", "why", "notes", "doubts", "rows")}


def test_fit_says_no_speed_of_another_release_than_it_was_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    def speed(release: str) -> dict[str, Any] | None:
        assert run(["fit", "nvidia-31b-mtp", "--machine", "h100", "--release", release, "--json"]) in (0, 1)
        found: dict[str, Any] | None = json.loads(capsys.readouterr().out)["speed"]
        return found

    assert (speed("0.32.0") or {})["basis"] == "shipped"
    old = speed("0.31.0") or {}
    assert old["basis"] == "bound"
    assert any("its vLLM is 0.31.0, and the cells are of 0.32.0" in note for note in old["notes"])
    assert speed("0.32.1.dev3") is None
    run(["fit", "nvidia-31b-mtp", "--machine", "h100", "--cached", "20000"])
    assert "speed not known: --cached 20000: with an answer of 1 tokens" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("more", [(), ("--machine", "here")])
def test_fit_says_the_speed_of_the_gpu_at_hand(
    more: tuple[str, ...], nvidia_smi: FakeNvidiaSmi, capsys: pytest.CaptureFixture[str]
) -> None:
    nvidia_smi.lists(card("NVIDIA H100 80GB HBM3", gib=79.65, capability="9.0"))
    assert run(["fit", "nvidia-31b-mtp", *more, "--json"]) in (0, 1)
    document = json.loads(capsys.readouterr().out)
    assert (document["speed"]["basis"], document["machine"]["bandwidth"]) == ("shipped", 3350 * 10**9)


def test_cells_of_one_gpu_say_nothing_of_four(capsys: pytest.CaptureFixture[str]) -> None:
    four = ["--machine", "h100", "--set", "serve.tensor_parallel_size=4"]
    assert run(["predict", "nvidia-31b-mtp", *four, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["basis"], said["rows"]) == ("bound", [])
    assert any("no measurement covers the link between 4 GPUs" in note for note in said["notes"])


ONE_GPU: dict[str, int] = {}
TWO_GPUS = {"tensor_parallel_size": 2, "draft_tensor_parallel_size": 2}
DRAFT_ON_ONE = {"tensor_parallel_size": 2, "draft_tensor_parallel_size": 1}
STAGES = {"pipeline_parallel_size": 2}


@pytest.mark.parametrize(
    ("sizes", "sets", "refused"),
    [
        (TWO_GPUS, (), "a server on 2 GPUs (tensor_parallel_size 2, draft_tensor_parallel_size 2)"),
        (ONE_GPU, ("serve.tensor_parallel_size=2",), "a server on one GPU"),
        (TWO_GPUS, ("serve.tensor_parallel_size=2",), ""),
        (DRAFT_ON_ONE, ("serve.tensor_parallel_size=2",), "a server on 2 GPUs (tensor_parallel_size 2)"),
        (DRAFT_ON_ONE, ("serve.tensor_parallel_size=2", "speculative.draft_tensor_parallel_size=1"), ""),
        (STAGES, (), "a server on 2 GPUs (pipeline_parallel_size 2)"),
        (STAGES, ("serve.extra_args=[--pipeline-parallel-size, '2']",), ""),
    ],
)
def test_cells_of_other_numbers_of_gpus_are_refused(
    sizes: dict[str, int], sets: tuple[str, ...], refused: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells of two GPUs made a server on one 15 % too fast, without a word."""
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"rows": [row(**sizes), drafted(k=4, **sizes)]}))
    given = [word for one in sets for word in ("--set", one)]
    code = run(["predict", "nvidia-31b-mtp", "--machine", "h100", "--measured", str(file), *given])
    assert code == (2 if refused else 0)
    assert refused in " ".join(capsys.readouterr().err.split())


def test_own_cells_of_two_gpus_are_kept_apart_from_those_of_one() -> None:
    one = load_profile("nvidia-31b-mtp", overrides=["machine=h100"])
    two = load_profile("nvidia-31b-mtp", overrides=["machine=h100", "serve.tensor_parallel_size=2"])
    cells = {"acceptance_length": 1.0, "spread": None}
    measurements.save(one, [{**row(tokens_per_second=92.0), **cells, **resolved_of(one.profile).parallel.keys()}])
    measurements.save(two, [{**row(tokens_per_second=110.0), **cells, **resolved_of(two.profile).parallel.keys()}])
    assert [cell.tokens_per_second for cell in measurements.own_rows(one)] == [92.0]
    assert [cell.tokens_per_second for cell in measurements.own_rows(two)] == [110.0]


def test_a_family_that_nobody_measured_says_so() -> None:
    hopper, spark, other = (law_of(family, "4-bit") for family in ("hopper", "gb10", "ada"))
    assert hopper.overhead_s > 0
    assert 0.7 < spark.share < hopper.share <= 1
    assert "family of GPUs (hopper)" in hopper.said
    assert "because none of ada is known" in other.said
    assert other.deviation > 2 * max(hopper.deviation, spark.deviation)


def test_a_family_of_two_servers_is_fitted_exactly_and_not_trusted_more_for_it() -> None:
    """An RTX 3090 makes 234 tokens/s of an E2B of 2 to 8 bits, where its bytes alone would allow 1,190."""
    ampere = law_of("ampere", "4-bit")
    assert 1 / ampere.seconds(0.785e9, 936e9) == pytest.approx(234.38, rel=0.02)
    assert ampere.deviation >= 0.2


def test_without_measurements_the_roofline_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No shipped file is of a Spark; the models are told by their shapes, and the Hub is not asked."""
    sets = ["--set", "serve.max_num_seqs=8"]
    with hub.serve() as asked:
        asked.aim(monkeypatch, tmp_path)
        assert run(["predict", "spark-31b-mtp", *sets, "--k", "0,1,2,6", "--concurrency", "1,4,8", "--json"]) == 0
        assert asked.requests == []
    document = json.loads(capsys.readouterr().out)
    assert document["basis"] == "roofline"
    assert "273 GB/s of dgx-spark" in document["why"]
    found = {(r["k"], r["concurrency"]): r for r in document["rows"]}
    assert set(found) == set(itertools.product((0, 1, 2, 6), (1, 4, 8)))
    for (k, concurrency), one in found.items():
        assert one["method"] == ("mtp" if k else "none")
        assert one["interval"][0] < one["tokens_per_second"] < one["interval"][1]
        expected = 1 + sum(one["acceptance"])
        assert one["tokens_per_second"] == pytest.approx(expected * concurrency / one["step_ms"] * 1000, rel=1e-5)
        assert one["step_ms"] >= found[0, concurrency]["step_ms"]
    law = law_of("gb10", "4-bit")
    alone = (found[0, 1]["step_ms"] / 1000 - law.overhead_s) * 273e9 * law.share
    assert 18e9 < alone < 22e9  # bytes: 31B in NVFP4
    assert found[0, 1]["interval"][0] < 9.02 < found[0, 1]["interval"][1]  # published for this target on a Spark


@pytest.mark.parametrize(
    ("profile", "override", "said"),
    [
        ("spark-31b", "serve.enforce_eager=true", "CUDA graphs: target NONE: enforce_eager turns them off"),
        ("spark-31b-mtp", "speculative.enforce_eager=true", "draft NONE: speculative.enforce_eager; remove it"),
        (
            "spark-31b-e2b",
            "env={VLLM_USE_V2_MODEL_RUNNER: '1'}",
            "draft NONE: vLLM 0.33.0 captures none for draft_model",
        ),
        ("spark-31b-e2b", "serve.port=8001", ""),
        ("spark-31b-mtp", "serve.port=8001", ""),
    ],
)
def test_the_roofline_says_which_graphs_are_lost(
    profile: str, override: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", profile, "--set", override, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    lost = [note for note in document["notes"] if "CUDA graphs" in note]
    assert document["basis"] == "roofline"
    assert len(lost) == bool(said)
    assert said in "".join(lost)


def test_of_many_runs_people_read_the_first_and_how_many_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["nvidia-31b-mtp", "--machine", "h100"]
    assert run(["predict", *asked, "--k", "0", "--concurrency", "1", "--json"]) == 0
    first, *more = json.loads(capsys.readouterr().out)["why"].split("; ")
    for command in ("predict", "fit"):
        run([command, *asked, "--explain"])
        said = " ".join(capsys.readouterr().out.split())
        assert f"{first}; and {len(more)} more runs, which --json names" in said
        assert more[-1] not in said


def test_of_a_mixture_the_roofline_says_how_it_counts_experts(capsys: pytest.CaptureFixture[str]) -> None:
    for profile, said in (("spark-26b-a4b-mtp", True), ("spark-31b-mtp", False)):
        assert run(["predict", profile, "--json"]) == 0
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert any("experts the drafted tokens share" in note for note in notes) is said


def test_the_roofline_of_a_mixture_has_what_was_published_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """75.7 tokens/s of spark-26b-a4b-mtp: more than the range had with experts of its own for each drafted token."""
    assert run(["predict", "spark-26b-a4b-mtp", "--concurrency", "1", "--json"]) == 0
    alone, drafted = json.loads(capsys.readouterr().out)["rows"]
    low, high = drafted["interval"]
    assert low < 75.7 < high
    assert high / low > 2 * alone["interval"][1] / alone["interval"][0]


def test_a_small_step_gains_little_of_a_faster_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """A 26B in FP8 made 189 tokens/s on an H100: most of its step is overhead, which an H200 has too."""
    assert run(["predict", "nvidia-26b-a4b-mtp", "--machine", "h200", "--k", "0", "--concurrency", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    low, high = row["interval"]
    assert 189 < row["tokens_per_second"] < 189 * 4800 / 3350
    assert low < 189 * 1.15 < high


def test_without_a_gpu_no_graphs_are_missed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "tiny-cpu"]) == 2
    assert "the memory bandwidth of this machine is unknown" in capsys.readouterr().err


def test_the_roofline_names_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "spark-31b-mtp", "--set", "machine=cpu", "--json"]) == 2
    assert "gemmaspec bench spark-31b-mtp --save-measured" in capsys.readouterr().err


def test_the_roofline_is_quick() -> None:
    command = [sys.executable, "-m", "gemmaspec", "predict", "spark-31b-mtp", "--set", "serve.max_num_seqs=8", "--json"]
    assert min(processor_seconds(command) for _ in range(3)) < 1.0


def test_a_hundred_cells_take_a_moment() -> None:
    measured = grid((0, 1, 2, 3, 4, 6, 8), (1, 2, 4, 8, 16, 32, 64), (256, 8192))
    began = time.process_time()
    predict(measured, Cells(ks=(0, 1, 2, 3, 4, 6, 8), concurrencies=(1, 2, 4, 8, 16)))
    assert time.process_time() - began < 1.5


def test_the_command_is_quick() -> None:
    """Half a second on a machine that does nothing else; time of the processor is counted, since tests share it."""
    command = [
        sys.executable,
        "-m",
        "gemmaspec",
        "predict",
        "nvidia-31b-mtp",
        "--machine",
        "h200",
        "--measured",
        str(H200),
        "--json",
    ]
    assert min(processor_seconds(command) for _ in range(3)) < 1.0


def processor_seconds(command: list[str]) -> float:
    """What a prediction of twelve cells takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([*command, "--k", "0,1,2,6", "--concurrency", "1,4,8"], check=True, capture_output=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def test_an_error_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        rows()


PATCHES = frozenset(
    {"triton-group-geometry", "triton-launch-params", "triton-verify-split-kv", "triton-3d-longer-block"}
)


def _held_back(images: bool | None) -> Iterator[tuple[Row, Predicted]]:
    """Each compiled or uncompiled cell of an H200 with the Triton patches, predicted from all others that speak."""
    rows = [row for run in store() for row in run.rows if row.machine == "h200" and row.vllm == "0.32.0"]
    rows = [row for row in rows if row.method in ("mtp", "none")]
    cells = [row for row in rows if row.images is None and row.linear_kernel == "humming" and row.patches]
    for row in cells:
        kind = Kind(
            vllm="0.32.0", backend="TRITON_ATTN", images=images, kv_cache="fp8", linear_kernel=None,  # type: ignore[arg-type]
            compiled=row.setting.graphs, alone="full", drafting=("full", "full"), patches=PATCHES,
            idle=frozenset({"triton-verify-split-kv", "triton-3d-longer-block"}),
        )  # fmt: skip
        same = (row.method, row.k, row.concurrency, row.context, row.setting)
        others = [one for one in rows if (one.method, one.k, one.concurrency, one.context, one.setting) != same]
        if images is not None:  # those of the other source alone
            others = [one for one in others if one.images is images]
        asked = Cells(
            ks=(row.k,), concurrencies=(row.concurrency,), contexts=(row.context,), method="mtp", compile=row.compile
        )  # fmt: skip
        yield from ((row, one) for one in predict(comparable_rows(others, kind).rows, asked))


@pytest.mark.parametrize("images", [None, False])
def test_a_cell_that_was_not_seen_is_within_a_tenth_or_has_no_figure(images: bool | None) -> None:
    found = list(_held_back(images))
    given = [(row, one) for row, one in found if one.step.deviation <= SURE]
    assert len(given) >= 8
    assert all(abs(one.step.seconds / row.step - 1) < 0.1 for row, one in given)
    worst = max(abs(one.step.seconds / row.step - 1) for row, one in found)
    assert worst > 0.15  # so that leaving figures out is what keeps the others within it


def test_the_patches_are_named_by_which_the_nearest_cells_differ() -> None:
    taken = frozenset({"here", "there", "everywhere"})
    kind = Kind(
        vllm="0.32.0", backend="TRITON_ATTN", images=False, kv_cache="fp8", linear_kernel=None, compiled="compiled",
        alone="full", drafting=("full", "full"), patches=taken, idle=frozenset(),
    )  # fmt: skip
    row = next(row for run in store() for row in run.rows if row.vllm == kind.vllm and row.k == 4 and not row.images)
    row = row.model_copy(update={"graphs": "full", "head_graphs": "full", "attention_backend": "TRITON_ATTN"})

    def said(*sets: set[str] | None) -> str:
        of_rows = [None if patches is None else tuple(patches) for patches in sets]
        return comparable_rows([row.model_copy(update={"patches": patches}) for patches in of_rows], kind).missing[True]

    assert said(set(), {"here", "there"}, {"here"}) == "the nearest cells were measured without everywhere"
    assert said({*taken, "more"}, {"here"}) == "the nearest cells were measured with more"
    both = "the nearest cells were measured with more and without everywhere, there"
    assert said({"here", "more"}, {"more", "most"}) == both
    assert said(None) == "its patches for speed are known, and the cells are of unknown ones"


def test_rows_that_were_sampled_do_not_speak_for_greedy_answers() -> None:
    rows = (row for run in store() for row in run.rows if row.vllm == "0.32.0" and row.images)
    row = next(row for row in rows if row.k == 0 and not row.patches)
    kind = Kind(
        vllm="0.32.0", backend=row.attention_backend, images=True, kv_cache=row.kv_cache_dtype, linear_kernel=None,
        compiled="compiled", alone="full", drafting=("full", "full"), patches=frozenset(), idle=frozenset(),
    )  # fmt: skip
    assert comparable_rows([row], kind).rows
    sampled = row.model_copy(update={"sampling": "temperature 1.0, top_k 64, top_p 0.95"})
    found = comparable_rows([sampled], kind)
    assert not found.rows
    assert found.missing[False] == "its answers are greedy, and the cells are of temperature 1.0, top_k 64, top_p 0.95"


def test_a_patch_of_every_step_is_converted_by_pairs_of_the_nearest_load_and_of_such_gpus() -> None:
    taken = frozenset({"humming-launch-params", "triton-verify-split-kv"})
    kind = Kind(
        vllm="0.32.0", backend="TRITON_ATTN", images=True, kv_cache="bf16", linear_kernel=None, compiled="compiled",
        alone="full", drafting=("full", "full"), patches=taken, idle=frozenset(),
    )  # fmt: skip
    shipped = (row for run in store() for row in run.rows if row.machine == "h200" and row.images and row.k == 4)
    row = next(row for row in shipped if row.graphs == "full" and row.compile == "default" and row.context == 8192)

    def like(requests: int, step: float, *patches: str, machine: str = "h100") -> Row:
        changed = {"concurrency": requests, "step_ms": step, "patches": patches, "machine": machine}
        return row.model_copy(update={**changed, "attention_backend": "TRITON_ATTN", "kv_cache_dtype": "bf16"})

    without = like(4, 20.0, "triton-verify-split-kv", machine="h200")
    pairs = [like(1, 10.0, "triton-verify-split-kv"), like(1, 9.0, *taken)]
    pairs += [like(4, 10.0, "triton-verify-split-kv"), like(4, 9.5, *taken)]
    assert not comparable_rows([without], kind).rows
    found = comparable_rows([without], kind, pairs)
    assert found.rows[0].step_ms == pytest.approx(19.0)
    assert found.measured == (without,)
    assert found.own == {(4, 4, 8192)}
    said = "with humming-launch-params: a step takes 0.950 times as long with a draft and 4 requests"
    assert found.factors == (f"{said} (1 measured pair)",)
    own = like(4, 30.0, *taken, machine="h200")
    assert comparable_rows([without, own], kind, pairs).rows[0].step_ms == 30.0  # a cell of its own comes first
    split = [like(4, 20.0, machine="h200"), *(like(4, step, *patches) for step, patches in ((9, taken), (18, ())))]
    assert not comparable_rows(
        split[:1], kind, split
    ).rows  # of the other patches a length of prompt tells nothing of another


def test_six_lines_name_the_fastest_k_of_each_load_and_how_far_the_profile_is_from_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["predict", "nvidia-31b-mtp", "--machine", "h100"]
    assert run([*asked, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert run(asked) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert "of such a server: tokens/s with the prompt at the fastest k (90 % interval)" in title
    assert [line[2:14].strip() for line in lines] == [
        "1 at once", "4 at once", "8 at once", "the profile", "unknown",
    ]  # fmt: skip
    slower = []
    for line, load in zip(lines, (1, 4, 8), strict=False):
        for context in (256, 1024, 8192):
            here = [one for one in document["rows"] if (one["concurrency"], one["context"]) == (load, context)]
            best = max(here, key=lambda one: one["tokens_per_second"])
            own = next(one for one in here if one["k"] == document["own_k"][str(load)])
            slower.append(1 - own["tokens_per_second"] / best["tokens_per_second"])
            assert f"after {context:,} tokens: {best['tokens_per_second']:,.1f} (" in line
            assert f"with k={best['k']}, {best['speedup']:.2f} times" in line
    assert f"drafts with k=4, at most {max(slower):.0%} slower" in lines[3]


def test_where_there_is_no_figure_four_lines_say_why_the_bound_and_how_to_measure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["predict", "nvidia-31b-mtp-32gb", "--machine", "h100"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "nvidia-31b-mtp-32gb on h100: no figure"
    assert [line.split()[0] for line in lines] == ["why", "bound", "measure"]
    assert "KV cache in fp8" in lines[0]
    assert "at most 731.3 tokens/s" in lines[1]


def test_six_lines_say_what_has_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "nvidia-31b-mtp", "--machine", "h100", "--set", "runtime.vllm=0.33.0"]
    assert run(asked) == 0
    *_, unknown = capsys.readouterr().out.splitlines()
    assert "no figure with a draft: the nearest cells were measured without" in unknown
