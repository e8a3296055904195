"""bench against a fake server: what it sends, what it makes of the answers, and what it does when the server fails."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.errors import StartFailed, UsageError
from gemmaspec.core.live.sample import Counters, read_sample
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.rows import parse_rows
from gemmaspec.measure.bench.cells import NO_TABLE, Arm, Cell, Task, arms_of, cells_of, order
from gemmaspec.measure.bench.filler import filler, lengthened
from gemmaspec.measure.bench.prompts import REFERENCE, WARM_UP, Prompt, chosen, mixed, read_prompts
from gemmaspec.measure.bench.settings import Asked, BenchRequest
from gemmaspec.measure.bench.stats import Span, by_request, percentile, steady_rate
from gemmaspec.measure.cell import Asking, median_step, reference_step
from gemmaspec.measure.gpu import GpuWatch
from gemmaspec.measure.servers.bench import TimeLeft, bench
from gemmaspec.measure.stream import Broken
from gemmaspec.run.engine.server import Server, server_at
from tests.support.docker_support import wait_for
from tests.support.fake_engine import FakeMachine
from tests.support.fake_vllm import FakeVllm
from tests.support.fixtures import PYTHON


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two categories of two prompts."""
    folder = tmp_path / "prompts"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two", "id": "second"}\n')
    (folder / "b.jsonl").write_text('{"messages": [{"role": "user", "content": "three"}]}\n{"prompt": "four"}\n')
    return folder


def arguments(fake_api: FakeVllm, prompts: Path, out: Path, *more: str) -> list[str]:
    own = ["--k", str(fake_api.k), "--concurrency", "1,4", "--rounds", "1", "--max-tokens", "24", "--repeats", "0"]
    return ["bench", "tiny-cpu", "--url", fake_api.url, "--prompts", str(prompts), "--out", str(out), *own, *more]


def at(fake_api: FakeVllm) -> tuple[str, ...]:
    """Options of a bench that starts its servers on a fake machine, where the fake answers for each."""
    return ("--engine", "process", *PYTHON, "--set", f"serve.port={fake_api.server_address[1]}")


def drafted_tokens(server: Server) -> int:
    """How many tokens a server drafts, by its stack."""
    file = server.folder / "speculative-config.json"
    return int(json.loads(file.read_text())["num_speculative_tokens"]) if file.exists() else 0


def result(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / "result.json").read_text())
    return document


def test_it_measures_what_the_server_does(fake_api: FakeVllm, prompts: Path, tmp_path: Path) -> None:
    fake_api.step_s = 0.02
    assert run(arguments(fake_api, prompts, tmp_path / "out")) == 0
    document = result(tmp_path / "out")
    assert document["complete"] is True
    alone, together = document["rows"]
    slowest = max((last - asked) / 13 * 1000 for _, asked, _, last, _ in fake_api.spans)
    for row in (alone, together):
        assert (row["method"], row["k"], row["vllm"], row["machine"]) == ("draft_model", 2, "0.32.0", None)
        assert "target" not in row  # behind an address nobody can read what is measured
        assert row["answer_tokens"] == 24
        assert row["acceptance"] == [1.0, 0.0]
        assert row["acceptance_length"] == 2.0
        assert 19 <= row["step_ms"] < 1.5 * slowest  # a busy machine sleeps longer than it is told
    # 24 tokens: one with the prompt, 23 in 12 steps; each request has 13 steps of 20 ms
    for row, at_once in ((alone, 1), (together, 4)):
        step = 24 * at_once / row["tokens_per_second"] / 13 * 1000
        assert step == pytest.approx(row["step_ms"], rel=0.5)
        assert row["tokens_per_second"] < at_once * 24 / (13 * 0.020)
    cell = document["cells"][0]
    assert cell["acceptance_by_category"] == {"a": [1.0, 0.0], "b": [1.0, 0.0]}
    assert [sample["prompt"] for sample in cell["samples"]] == ["a-1", "second", "b-1", "b-2"]
    assert cell["completion_tokens"] == 4 * 24
    assert cell["overhead"] < 0.01


def test_the_requests_are_greedy_streamed_and_never_known_to_the_prefix_cache(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path
) -> None:
    assert run(arguments(fake_api, prompts, tmp_path / "out")) == 0
    salts = [body["cache_salt"] for body in fake_api.bodies]
    assert len(set(salts)) == len(salts)
    assert {body["temperature"] for body in fake_api.bodies} == {0.0}
    assert all(body["stream_options"] == {"include_usage": True} for body in fake_api.bodies)
    measured = [b for b in fake_api.bodies if b["messages"][0]["content"] in ("one", "two", "three", "four")]
    assert len(measured) == 4 + 8
    assert not any("ignore_eos" in body for body in measured)
    others = {body["messages"][0]["content"] for body in fake_api.bodies if body not in measured}
    assert others == {REFERENCE, *WARM_UP}


def test_what_traffic_does_can_be_asked_for(fake_api: FakeVllm, prompts: Path, tmp_path: Path) -> None:
    assert run(arguments(fake_api, prompts, tmp_path / "out", "--sample", "--ignore-eos")) == 0
    measured = [b for b in fake_api.bodies if b["messages"][0]["content"] == "one"]
    assert all("temperature" not in body and body["ignore_eos"] and body["min_tokens"] == 24 for body in measured)


def test_its_rows_are_what_predict_takes(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(fake_api, prompts, tmp_path / "out", "--json", "--save-measured")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(parse_rows(json.dumps(printed), file="printed")) == 2
    assert run(["predict", "tiny-cpu", "--k", "2", "--concurrency", "2", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert predicted["basis"] == "own"
    assert run(["predict", "tiny-cpu", "--measured", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["basis"] == "measured"


def test_fit_tells_what_was_measured_and_kept() -> None:
    from gemmaspec.check.use_cases import fit
    from gemmaspec.core import data
    from gemmaspec.core.patching.patch import Shelf
    from gemmaspec.run.kept import measurements

    loaded = load_profile("spark-31b-mtp")
    own = measurements.own_file(loaded)
    own.parent.mkdir(parents=True)
    rows = [
        {"method": "none", "k": 0, "concurrency": 1, "context": 256, "acceptance": [], "tokens_per_second": 11.0},
        {"method": "mtp", "k": 7, "concurrency": 1, "context": 256, "acceptance": [0.5] * 7, "tokens_per_second": 39.1},
    ]
    own.write_text(json.dumps({"rows": rows}))
    assert list(fit._measured_here(loaded, Shelf(data.patch_folders()))) == [
        "bench measured 39.1 tokens/s with mtp k=7, 11.0 without; 1 at once, 256 tokens of prompt"
    ]


def test_own_measurements_replace_the_same_cells_and_refuse_another_machine(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gemmaspec.run.kept import measurements

    own = measurements.own_file(load_profile("tiny-cpu"))
    for name in ("one", "two"):
        assert run(arguments(fake_api, prompts, tmp_path / name, "--save-measured")) == 0
    assert len(json.loads(own.read_text())["rows"]) == 2
    rows = [row | {"machine": "h200"} for row in json.loads(own.read_text())["rows"]]
    own.write_text(json.dumps({"rows": rows}))
    assert run(arguments(fake_api, prompts, tmp_path / "three", "--save-measured")) == 2
    assert "rows of another machine" in capsys.readouterr().err
    assert result(tmp_path / "three")["complete"] is True


def test_a_table(fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(fake_api, prompts, tmp_path / "a")) == 0
    assert "draft_model  2         4" in capsys.readouterr().out


def test_per_request_metrics_give_categories_and_an_interval_under_load(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path
) -> None:
    fake_api.per_request = True
    assert run(arguments(fake_api, prompts, tmp_path / "out")) == 0
    together = result(tmp_path / "out")["cells"][1]
    assert together["acceptance_by_category"] == {"a": [1.0, 0.0], "b": [1.0, 0.0]}
    assert together["acceptance_length_90"] == [2.0, 2.0]


def test_a_server_without_speculation_is_the_arm_without(fake_api: FakeVllm, prompts: Path, tmp_path: Path) -> None:
    fake_api.k = 0
    assert run(arguments(fake_api, prompts, tmp_path / "out")) == 0
    assert {(row["method"], row["k"]) for row in result(tmp_path / "out")["rows"]} == {("none", 0)}


def test_a_server_that_does_not_draft_is_not_measured_as_one_that_does(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_api.k = 0
    assert run(arguments(fake_api, prompts, tmp_path / "out", "--k", "2")) == 2
    assert "the server does not speculate, which does not match --k" in capsys.readouterr().err


def test_contexts_are_made_to_length(fake_api: FakeVllm, prompts: Path, tmp_path: Path) -> None:
    assert run(arguments(fake_api, prompts, tmp_path / "out", "--context", "64,1024")) == 0
    document = result(tmp_path / "out")
    assert {row["context"] for row in document["rows"]} == {64, 1024}
    for cell in document["cells"]:
        assert cell["prompt_tokens"] == pytest.approx(cell["context"], rel=0.02)


def test_prompts_longer_than_the_servers_context_are_told(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (prompts / "long.jsonl").write_text(json.dumps({"prompt": "x" * 900}) + "\n")
    fake_api.max_model_len = 100
    assert run(arguments(fake_api, prompts, tmp_path / "out")) == 0
    assert "1 of 5 prompts are too long for this server and are skipped" in capsys.readouterr().err
    fake_api.max_model_len = 20
    assert run(arguments(fake_api, prompts, tmp_path / "other")) == 2
    assert "no prompt fits: the server's context is 20 tokens, 24 of them for the answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        ({"dies_at": 20}, "the server closed the connection during an answer"),
        ({"without_usage": True}, "without its usage"),
        ({"garbage": True}, "an event that is not JSON"),
        (
            {"refuses": (400, "min_p is not supported")},
            "the server rejects a request (HTTP 400): min_p is not supported",
        ),
        ({"refuses": (500, "CUDA error")}, "failed inside the server (HTTP 500): CUDA error"),
        ({"refuses": (401, "")}, "the server rejects the API key"),
    ],
)
def test_a_server_that_fails_is_one_clear_sentence(
    fake_api: FakeVllm,
    prompts: Path,
    tmp_path: Path,
    break_it: dict[str, Any],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in break_it.items():
        setattr(fake_api, name, value)
    assert run(arguments(fake_api, prompts, tmp_path / "out")) in (1, 2)
    printed = capsys.readouterr()
    assert said in printed.err
    assert "Traceback" not in printed.err


def test_a_server_that_dies_in_a_cell_loses_no_cell_and_the_run_goes_on_later(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    # 2 to warm up, the reference, 4 prompts, the reference; then 8 to warm up: the 20th is in the second cell
    fake_api.dies_at = 20
    assert run(arguments(fake_api, prompts, out)) == 1
    said = capsys.readouterr().err
    assert "draft_model k=2, 4 concurrent: the server closed the connection" in said
    assert f"1 measured cell is kept in {out / 'result.json'}" in said
    assert "--resume" in said
    partial = result(out)
    assert partial["complete"] is False
    assert len(partial["cells"]) == 1
    assert "Incomplete" in (out / "report.html").read_text()
    fake_api.dies_at = None
    more = [word for word in arguments(fake_api, prompts, out) if word not in ("--out", str(out))]
    assert run([*more, "--resume", str(out)]) == 0
    whole = result(out)
    assert whole["complete"] is True
    assert whole["cells"][0] == partial["cells"][0]
    assert len(whole["cells"]) == 2


def test_a_run_is_not_resumed_as_another_one(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    fake_api.dies_at = 20
    assert run(arguments(fake_api, prompts, out)) == 1
    more = [word for word in arguments(fake_api, prompts, out) if word not in ("--out", str(out))]
    assert run([*more, "--resume", str(out), "--ignore-eos"]) == 2
    assert "was started without --ignore-eos" in capsys.readouterr().err
    (prompts / "a.jsonl").write_text('{"prompt": "five"}\n')
    assert run([*more, "--resume", str(out)]) == 2
    assert "was started with other prompts: their files have changed" in capsys.readouterr().err


def test_resume_alone_goes_on_with_the_options_of_the_run(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    fake_api.dies_at = 20
    assert run(arguments(fake_api, prompts, out, "--ignore-eos", "--set", "serve.max_num_seqs=4")) == 1
    assert f"gemmaspec bench --resume {out}" in capsys.readouterr().err
    fake_api.dies_at = None
    started_with = result(out)["settings"]
    assert run(["bench", "--resume", str(out)]) == 0
    assert result(out)["complete"] is True
    assert result(out)["settings"] == started_with
    assert run(["bench", "--resume", str(out), "--set", "serve.max_num_seqs=8"]) == 2
    assert "was started with --set serve.max_num_seqs=4" in capsys.readouterr().err
    assert run(["bench", "--resume", str(out), "--temperature", "0.5"]) == 2
    assert "was started with --temperature 0.0" in capsys.readouterr().err
    document = result(out)
    document["settings"]["ks"] = "many"
    (out / "result.json").write_text(json.dumps(document))
    assert run(["bench", "--resume", str(out)]) == 2
    assert "settings.ks is missing or not what bench writes" in capsys.readouterr().err
    assert run(["bench"]) == 2
    assert "name a profile" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("overrides", ["runtime.python=EVIL"], "--set runtime.python=EVIL"),
        ("overrides", ["serve={trust_remote_code: true}"], "--set 'serve={trust_remote_code: true}'"),
        ("overrides", ["serve.max_num_seqs=2", "serve.extra_args=[--middleware, os.system]"], "--middleware"),
        ("overrides", ["target.model=/etc"], "target.model=/etc"),
        ("overrides", ["env.LD_PRELOAD=/tmp/x.so"], "LD_PRELOAD"),
        ("profile", "./evil.yaml", "./evil.yaml"),
        ("url", "http://192.0.2.1:1", "--url http://192.0.2.1:1"),
        ("prompts", "/etc", "--prompts /etc"),
    ],
)
def test_a_result_from_elsewhere_may_only_measure(
    fake_api: FakeVllm,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: Any,
    said: str,
) -> None:
    out = tmp_path / "out"
    assert run(arguments(fake_api, prompts, out)) == 0
    document = result(out)
    document["settings"] |= {"url": None, "prompts": "gemmaspec", "overrides": [], name: value}
    document["cells"], document["complete"] = [], False
    (out / "result.json").write_text(json.dumps(document))
    asked = len(fake_api.bodies)
    capsys.readouterr()
    assert run(["bench", "--resume", str(out)]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert f"gemmaspec bench {'./evil.yaml' if name == 'profile' else 'tiny-cpu'} --resume {out}" in printed
    assert len(fake_api.bodies) == asked


def test_what_the_caller_states_goes_on_with_a_result_from_elsewhere(
    fake_api: FakeVllm,
    prompts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    fake_api.dies_at = 20
    assert run(arguments(fake_api, prompts, out)) == 1
    fake_api.dies_at = None
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "another-machine"))
    capsys.readouterr()
    assert run(["bench", "--resume", str(out)]) == 2
    hint = next(line for line in capsys.readouterr().err.splitlines() if "try: gemmaspec bench" in line)
    assert run(shlex.split(hint.partition("try: gemmaspec ")[2])) == 0
    assert result(out)["complete"] is True
    assert run(["bench", "--resume", str(out)]) == 0  # by now it is this user's own


def test_the_report_is_as_new_as_the_result(fake_api: FakeVllm, prompts: Path, tmp_path: Path) -> None:
    seen = []

    class Reading:
        """Reads the report whenever a cell is told."""

        def note(self, text: str) -> None:
            if "tok/s" in text:
                seen.append((tmp_path / "out" / "report.html").read_text().count('"method": "draft_model"'))

        def phase(self, *_: object) -> None:
            pass

    asked = {"ks": (fake_api.k,), "concurrencies": (1, 4), "rounds": 1, "max_tokens": 24, "repeats": 0}
    request = BenchRequest(profile="tiny-cpu", url=fake_api.url, prompts=str(prompts), out=tmp_path / "out", **asked)
    bench(request, Reading())
    assert seen == [1, 2]


def test_what_is_left_counts_the_starts() -> None:
    now = iter([0.0, 600.0, 600.0, 600.0])
    alone, drafted = Arm(method="none", k=0), Arm(method="mtp", k=2)
    left = TimeLeft(starts=True, clock=lambda: next(now))
    for _ in range(2):  # the second finds its server running
        with left.starting(alone):
            pass
    left.measured(30.0)
    assert left.said([alone, alone, drafted, drafted, alone]) == "; 4 left and 2 server starts, about 22 min"
    assert left.said([alone, alone]) == "; 1 left, under a minute"
    assert left.said([alone]) == ""
    running = TimeLeft(starts=False)
    running.measured(30.0)
    assert running.said([alone, drafted, drafted]) == "; 2 left, about 1 min"


def test_the_reference_is_timed_from_first_token_to_last(fake_api: FakeVllm, tmp_path: Path) -> None:
    """Chunks in bursts: nearly all gaps are zero, as from a fast server on a busy machine."""
    fake_api.k, fake_api.step_s, fake_api.burst = 0, 0.02, 3
    there = dataclasses.replace(server_at(fake_api.url, option="--url", name="x"), model="fake-model")
    asking = Asking(server=there, api_key=None, asked=Asked(profile="x", max_tokens=8))
    found = reference_step(asking)
    assert 0.019 < found < 1.5 * max((last - first) / (tokens - 1) for _, _, first, last, tokens in fake_api.spans)


def test_the_reference_is_repeated_for_a_second() -> None:
    answers = iter([(0.39, 39), (0.0, 39), (0.78, 39), (7.8, 39)])
    assert median_step(answers) == pytest.approx(0.015), "one that came in one piece does not count"
    assert list(answers) == [(7.8, 39)], "it is not asked for what is not needed"


def test_the_reference_of_an_answer_that_comes_at_once_is_timed_by_the_server(
    fake_api: FakeVllm,
) -> None:
    """Its chunks arrive within a thousandth of a step, be it with a draft or without."""
    there = dataclasses.replace(server_at(fake_api.url, option="--url", name="x"), model="fake-model")
    asking = Asking(server=there, api_key=None, asked=Asked(profile="x", max_tokens=8))
    for k, burst in ((0, 1), (0, 39), (2, 1)):
        fake_api.k, fake_api.step_s, fake_api.burst, fake_api.held, fake_api.decode_seconds = k, 0.02, burst, True, 0.0
        fake_api.spans.clear()
        found = reference_step(asking)
        steps = [
            (last - first) / -(-(tokens - 1) // (fake_api.accepts + 1 if k else 1))
            for _, _, first, last, tokens in fake_api.spans
        ]
        assert found == pytest.approx(statistics.median(steps))
    with pytest.raises(Broken, match="came in one piece"):  # here a busy reader would space it out
        median_step([(0.0, 39)] * 3)


@pytest.mark.parametrize(("k", "concurrency"), [(0, 1), (0, 4), (2, 1)])
def test_a_cell_of_answers_that_come_at_once_is_timed_by_the_server(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, k: int, concurrency: int
) -> None:
    """Each answer is written when it is complete, as by a tiny model that computes faster than its server writes."""
    fake_api.k, fake_api.step_s, fake_api.held, fake_api.decode_seconds = k, 0.02, True, 0.0
    assert run([*arguments(fake_api, prompts, tmp_path / "out"), "--concurrency", str(concurrency)]) == 0
    (row,) = result(tmp_path / "out")["rows"]
    measured = [last - first for text, _, first, last, _ in fake_api.spans if text in ("one", "two", "three", "four")]
    steps = 12 if k else 23
    assert row["step_ms"] == pytest.approx(1000 * statistics.mean(measured) / steps, rel=0.001)
    assert row["step_ms"] >= 20


def test_a_server_that_answers_others_too_is_timed_by_what_arrives(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path
) -> None:
    fake_api.k, fake_api.step_s, fake_api.foreign, fake_api.decode_seconds = 0, 0.02, 100, 5000.0
    assert run([*arguments(fake_api, prompts, tmp_path / "out"), "--concurrency", "1"]) == 0
    (cell,) = result(tmp_path / "out")["cells"]
    assert [group["decode_seconds"] for group in cell["counters"]] == [0.0, 0.0]
    assert cell["step_ms"] >= 19


def test_a_folder_with_a_result_is_not_written_over(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(fake_api, prompts, tmp_path / "out")) == 0
    before = (tmp_path / "out" / "result.json").read_bytes()
    assert run(arguments(fake_api, prompts, tmp_path / "out")) == 2
    assert "already contains a result" in capsys.readouterr().err
    assert (tmp_path / "out" / "result.json").read_bytes() == before


def test_ctrl_c_leaves_a_valid_partial_result(fake_api: FakeVllm, prompts: Path, tmp_path: Path) -> None:
    fake_api.step_s = 0.03
    command = [sys.executable, "-m", "gemmaspec", *arguments(fake_api, prompts, tmp_path / "out", "--rounds", "4")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=os.environ)
    assert process.stderr
    with process:
        for line in process.stderr:
            if line.startswith("[1/"):
                time.sleep(0.3)
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert "interrupted; " in rest
    assert "--resume" in rest
    document = result(tmp_path / "out")
    assert document["complete"] is False
    assert parse_rows(json.dumps(document), file="partial")


def test_a_machine_that_slows_down_is_measured_again_and_marked(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_api.step_s, fake_api.slows_down = 0.01, 1.15
    assert run(arguments(fake_api, prompts, tmp_path / "out", "--concurrency", "1", "--repeats", "1")) == 0
    cell = result(tmp_path / "out")["cells"][0]
    assert cell["reference"]["steady"] is False
    assert cell["reference"]["repeated"] == 1
    assert result(tmp_path / "out")["rows"][0]["steady"] is False
    assert "changed by more than 3 %" in capsys.readouterr().out


def test_an_arm_that_does_not_start_is_a_result_and_the_others_are_measured(
    fake_api: FakeVllm,
    prompts: Path,
    tmp_path: Path,
    machine: FakeMachine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def starts(server: Server) -> None:
        fake_api.k = drafted_tokens(server)
        if fake_api.k == 4:
            raise StartFailed("the server died while loading")

    machine.starting = starts
    own = [
        *at(fake_api),
        "--prompts",
        str(prompts),
        "--out",
        str(tmp_path / "out"),
        "--repeats",
        "0",
        "--max-tokens",
        "24",
    ]
    assert run(["bench", "tiny-cpu", "--k", "0,2,4", "--concurrency", "1", "--rounds", "2", *own]) == 6
    printed = capsys.readouterr()
    assert printed.err.count("draft_model k=4 does not start and is skipped") == 1
    (told,) = [line for line in printed.out.splitlines() if "draft_model k=4 did not start: " in line]
    assert "its earlier server was stopped for this start. the server died while loading" in told
    document = result(tmp_path / "out")
    assert [(one["k"], one["round"]) for one in document["cells"]] == [(0, 1), (2, 1), (2, 2), (0, 2)]
    assert document["complete"] is False
    assert run(["bench", "tiny-cpu", "--k", "4", "--concurrency", "1", *own, "--out", str(tmp_path / "alone")]) == 6
    assert "the server died while loading" in capsys.readouterr().err


def test_somebody_else_on_the_server_is_seen(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_api.foreign = 7
    assert run(arguments(fake_api, prompts, tmp_path / "out")) == 0
    assert "Another client used the server" in capsys.readouterr().out


def test_the_health_check_of_its_own_container_is_nobody_else(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks for one token where nothing moved for a minute."""
    fake_api.checked_during = "three"
    assert run(arguments(fake_api, prompts, tmp_path / "out")) == 0
    assert fake_api.checked_during == ""
    assert "Another client used the server" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--url", "https://127.0.0.1:1"], "is not an address like http://127.0.0.1:8000"),
        (["--url", "http://user:pw@127.0.0.1:1"], "is not an address like"),
        (["--url", "http://127.0.0.1:x"], "is not an address like"),
        (["--url", "http://127.0.0.1:1", "--running"], "--running and --url cannot be used together"),
        (["--concurrency", "9"], "runs 4 concurrent requests (serve.max_num_seqs)"),
        (["--category", "poetry"], "'poetry' is not one of chat, "),
        (["--prompts", "/no/such/folder"], "missing folder /no/such/folder"),
        (["--k", "0,2,99"], "--k must be a list of whole numbers from 0 to 64"),
        (["--running"], "no stack named 'tiny-cpu' was started"),
        (["--set", "draft=null", "--set", "speculative=null", "--k", "2"], "does not speculate, so its only k is 0"),
    ],
)
def test_a_mistake_is_told_before_anything_is_started(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "tiny-cpu", "--out", str(tmp_path / "out"), *more]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_server_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "tiny-cpu", "--url", "http://127.0.0.1:9", "--out", str(tmp_path / "out")]) != 0
    said = capsys.readouterr().err
    assert (
        "closed the connection during /metrics" in said
        or "closed the connection during /v1/models" in said
        or "cannot connect to" in said
    )


# Prompts


def test_the_shipped_prompts_are_eight_categories_of_ten() -> None:
    found = read_prompts(data.PROMPTS, name="gemmaspec")
    assert found.categories == ("chat", "code-edit", "code", "json", "maths", "rag", "text", "tools")
    assert all(len([one for one in found.prompts if one.category == name]) == 10 for name in found.categories)
    assert len({one.id for one in found.prompts}) == 80
    texts = [json.dumps(one.body()) for one in found.prompts]
    assert len(set(texts)) == 80
    assert min(map(len, texts)) > 100
    assert max(map(len, texts)) > 10 * min(map(len, texts))
    assert all(one.tools for one in found.prompts if one.category == "tools")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "  "}', "a.jsonl:1: the prompt is empty"),
        ('{"prompt": 3}', "a.jsonl:1: the prompt is empty"),
        ('{"messages": []}', "a.jsonl:1: the prompt is empty"),
        ('{"messages": [{"content": "x"}]}', "a.jsonl:1: messages: each needs a role"),
        ('{"messages": "x"}', "a.jsonl:1: messages: must be a list of maps"),
        ("{", "a.jsonl:1: not JSON"),
        ("[1]", "a.jsonl:1: not a prompt"),
        ("", "contains no prompts"),
    ],
)
def test_prompts_that_are_none_are_told(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(UsageError, match=re.escape(said)):
        read_prompts(tmp_path, name="own")


def test_the_digest_of_prompts_is_that_of_their_content(prompts: Path, tmp_path: Path) -> None:
    first = read_prompts(prompts, name="x").sha256
    shutil.copytree(prompts, tmp_path / "copy")
    assert read_prompts(tmp_path / "copy", name="y").sha256 == first
    (tmp_path / "copy" / "a.jsonl").write_text('{"prompt": "other"}\n')
    assert read_prompts(tmp_path / "copy", name="y").sha256 != first


def test_categories_take_turns(prompts: Path) -> None:
    found = read_prompts(prompts, name="x")
    assert [one.id for one in mixed(found.prompts, 6)] == ["a-1", "b-1", "second", "b-2", "a-1", "b-1"]
    assert [one.id for one in chosen(found, categories=("b",), each=1)] == ["b-1"]


def test_a_prompt_is_lengthened_in_front_of_its_question() -> None:
    prompt = Prompt(
        id="x", category="c", messages=({"role": "system", "content": "S"}, {"role": "user", "content": "Q"})
    )
    made = lengthened(prompt, 500)
    assert made.messages[0] == {"role": "system", "content": "S"}
    assert made.messages[1]["content"].endswith("\nQ")
    assert 500 < len(made.messages[1]["content"]) < 600
    assert filler(300, seed="a") == filler(300, seed="a") != filler(300, seed="b")


# Order and figures


def test_rounds_are_measured_in_turned_order() -> None:
    alone, drafted = Arm(method="none", k=0), Arm(method="mtp", k=2)
    tasks = order([alone, drafted], cells_of([1, 4], []), rounds=2)
    assert [(task.arm.k, task.cell.concurrency) for task in tasks] == [
        *((0, 1), (0, 4), (2, 1), (2, 4)),
        *((2, 4), (2, 1), (0, 4), (0, 1)),
    ]
    starts = [task.arm for n, task in enumerate(tasks) if n == 0 or tasks[n - 1].arm != task.arm]
    assert starts == [alone, drafted, alone]


def test_a_table_of_k_is_measured_as_it_is_and_each_cell_has_the_k_of_its_load() -> None:
    more = ("speculative.num_speculative_tokens=4", "speculative.k_by_requests={1: 4, 4: 2, 8: 0}")
    profile = load_profile("tiny-cpu", overrides=more).profile
    _, own = arms_of(profile, ())
    assert own == arms_of(profile, (0, 4))[1]
    assert (own.overrides, own.name) == ((), "draft_model/4/k_by_requests {1: 4, 4: 2, 8: 0}")
    ks = [Task(arm=own, cell=Cell(concurrency=load), round=1).k for load in (1, 3, 4, 7, 8, 9)]
    assert ks == [4, 4, 2, 2, 0, 0]
    assert arms_of(profile, (2,))[0].overrides == (NO_TABLE, "speculative.num_speculative_tokens=2")


def test_each_k_of_synthetic_acceptance_gets_its_own_rates() -> None:
    loaded = load_profile(
        "tiny-cpu",
        overrides=[
            "speculative.rejection_sample_method=synthetic",
            "speculative.synthetic_acceptance_rates=[0.7, 0.49, 0.343, 0.24]",
        ],
    )
    arms = arms_of(loaded.profile, (0, 2, 4))
    assert arms[0].alone
    assert "speculative.synthetic_acceptance_rates=[0.7, 0.49]" in arms[1].overrides
    assert arms[2].overrides == ()
    again = load_profile("tiny-cpu", overrides=["speculative.rejection_sample_method=synthetic", *arms[1].overrides])
    assert again.profile.speculative
    assert again.profile.speculative.synthetic_acceptance_rates == [0.7, 0.49]
    with pytest.raises(UsageError, match="has 4 rates, but 8 are needed"):
        arms_of(loaded.profile, (8,))


def test_the_end_of_a_run_does_not_count_as_load() -> None:
    even = [Span(0, 10, 100), Span(0, 10, 100)]
    assert steady_rate(even, 2) == 20
    tail = [*even, Span(10, 20, 100)]
    assert steady_rate(tail, 2) == 20  # from 10 on only one runs
    assert steady_rate(tail, 1) == 15
    assert steady_rate([], 2) == 0


def test_percentiles_and_intervals() -> None:
    assert percentile([1, 2, 3, 4], 0.5) == 2.5
    with pytest.raises(ValueError, match="no value"):
        percentile([], 0.5)
    low, high = by_request([1, 2, 3, 4, 5], lambda drawn: sum(drawn) / len(drawn)) or (0, 0)
    assert 1 < low < 3 < high < 5
    assert by_request([1, 2], sum) is None


def test_counters_are_read_by_position_and_over_engines() -> None:
    text = "".join(
        f'vllm:generation_tokens_total{{engine="{engine}"}} 10.0\nvllm:spec_decode_num_drafts_total{{engine="{engine}"}} 4.0\n'
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{engine}",position="0"}} 3.0\n'
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{engine}",position="1"}} 1.0\n'
        for engine in "01"
    )
    found = Counters.of(read_sample(text, at=0.0))
    assert (found.generated, found.drafts, found.by_position) == (20, 8, (6, 2))
    added = found.since(Counters.of(read_sample(text.replace(" 10.0", " 7.0"), at=0.0)))
    assert added
    assert added.generated == 6


@pytest.mark.parametrize("value", ["NaN", "-1", "many"])
def test_counters_that_are_none_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"not a number|could not convert"):
        read_sample(f"vllm:generation_tokens_total {value}\n", at=0.0)


def test_gpus_are_watched_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho '2411, 41.37, 61, [N/A]'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with GpuWatch() as watch:
        wait_for(lambda: watch.summary())
    found = watch.summary()
    assert found is not None
    assert found["power_w"] == {"median": 41.37, "min": 41.37, "max": 41.37}
    assert found["clock_mhz"]["median"] == 2411
    assert "memory_used" not in found
    script.write_text("#!/bin/sh\nexit 9\n")
    with GpuWatch() as watch:
        wait_for(lambda: not watch._thread.is_alive())
    assert watch.summary() is None


def test_acceptance_alone_takes_a_few_prompts_with_the_draft_and_no_other_server(
    fake_api: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "tiny-cpu", "--url", fake_api.url, "--prompts", str(prompts), "--out", str(tmp_path / "out")]
    assert run([*words, "--k", str(fake_api.k), "--max-tokens", "24", "--acceptance"]) == 0
    document = result(tmp_path / "out")
    (row,) = document["rows"]
    settings = document["settings"]
    assert (row["k"], row["concurrency"]) == (fake_api.k, 1)
    assert (settings["rounds"], settings["repeats"], settings["each"]) == (1, 0, 1)
    assert f"accepted  k={fake_api.k}: {row['acceptance_length']:.2f} tokens a step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("profile", "more", "said"),
    [
        ("tiny-cpu", ["--dummy-weights"], "accept by lot"),
        ("tiny-cpu", ["--k", "0,2"], "leave 0 out of --k"),
        ("spark-31b", [], "does not draft"),
    ],
)
def test_acceptance_without_a_draft_of_its_own_is_refused(
    profile: str, more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", profile, "--acceptance", "--out", str(tmp_path / "out"), *more]) == 2
    assert said in capsys.readouterr().err
