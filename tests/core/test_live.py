"""Counters of a server over time: samples, windows, quantiles, the board of `top`, dashboards and alerts."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.core.live.board import Board, GpuLoad, View, bars, document, gpu_line, rows
from gemmaspec.core.live.sample import TTFT, Histogram, Sample, read_sample
from gemmaspec.core.live.window import History, quantile, restarted, window
from gemmaspec.look.monitors import grafana, prometheus, prometheus_rules

RECORDED = Path(__file__).parent.parent / "data" / "metrics-0.32.0.txt"
"""/metrics of a vLLM 0.32.0 on a CPU after some drafted requests, its lines about Python left out."""


def sample(at: float, **values: object) -> Sample:
    return Sample(at=at, histograms={}, **values)  # type: ignore[arg-type]


def test_a_real_page_is_read() -> None:
    found = read_sample(RECORDED.read_text(), at=1.0)
    assert found.drafts > 0
    assert found.draft_tokens == 4 * found.drafts
    assert sum(found.accepted_by_position) == found.accepted_tokens > 0
    assert len(found.accepted_by_position) == 4
    assert found.steps >= found.drafts
    assert found.histograms[TTFT].bounds[-1] == math.inf
    assert found.histograms[TTFT].counts[-1] > 0


def test_engines_of_one_server_are_summed_and_the_fullest_cache_counts() -> None:
    page = """
vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_running{engine="1"} 3.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 6.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="2"} 1.0
"""
    found = read_sample(page, at=0.0)
    assert (found.running, found.kv_usage) == (5.0, 0.75)
    assert found.accepted_by_position == (11.0, 0.0, 1.0)


@pytest.mark.parametrize(
    "line",
    [
        "vllm:generation_tokens_total NaN",
        "vllm:generation_tokens_total -1",
        "vllm:spec_decode_num_drafts_total +Inf",
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="9999999"} 1',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="x"} 1',
        "vllm:time_to_first_token_seconds_bucket{} 1",
        "vllm:generation_tokens_total one",
    ],
)
def test_a_page_that_cannot_be_read_is_an_error(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words are the parser's
        read_sample(line + "\n", at=0.0)


@given(st.text(max_size=300))
def test_no_page_crashes_with_anything_else(text: str) -> None:
    for page in (text, f'vllm:generation_tokens_total{{a="{text}"}} 1', f"vllm:num_requests_running {text}"):
        try:
            read_sample(page, at=0.0)
        except (ValueError, OverflowError, IndexError, KeyError):
            continue


def test_what_happened_between_two_samples() -> None:
    before = sample(10.0, generation_tokens=100.0, drafts=10.0, draft_tokens=40.0, accepted_tokens=20.0, steps=50.0,
                    accepted_by_position=(10.0, 5.0, 3.0, 2.0), running=1.0)  # fmt: skip
    now = sample(12.0, generation_tokens=160.0, drafts=30.0, draft_tokens=120.0, accepted_tokens=60.0, steps=70.0,
                 accepted_by_position=(28.0, 15.0, 11.0, 6.0), running=1.0, preemptions=2.0)  # fmt: skip
    found = window(before, now)
    assert found
    assert found.tokens_per_second == 30.0
    assert found.acceptance_length == 3.0
    assert found.k == 4.0
    assert found.by_position == (0.9, 0.5, 0.4, 0.2)
    assert found.step_ms == 100.0
    assert (found.drafted_per_second, found.accepted_per_second, found.preemptions) == (40.0, 20.0, 2)
    assert found.prefix_hit_share is None
    assert found.ttft.p50 is None


def test_an_idle_server_has_no_step_time_and_no_acceptance() -> None:
    found = window(sample(0.0, steps=5.0), sample(1.0, steps=5.0))
    assert found
    assert (found.step_ms, found.acceptance_length, found.k, found.by_position) == (None, None, None, ())


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (sample(0.0, generation_tokens=5.0), sample(1.0, generation_tokens=4.0)),
        (sample(0.0, started=1000.0), sample(1.0, started=1500.0, generation_tokens=9.0)),
        (sample(0.0, drafts=3.0), sample(1.0, drafts=0.0, generation_tokens=9.0)),
    ],
)
def test_a_restart_between_two_samples_gives_no_window(before: Sample, now: Sample) -> None:
    assert restarted(before, now)
    assert window(before, now) is None


def test_a_window_needs_time() -> None:
    assert window(sample(1.0), sample(1.0)) is None


@pytest.mark.parametrize(
    ("share", "bounds", "counts", "found"),
    [
        (0.5, (1.0, 2.0, math.inf), (0.0, 10.0, 10.0), 1.5),
        (0.9, (1.0, 2.0, math.inf), (5.0, 10.0, 10.0), 1.8),
        (0.99, (1.0, 2.0, math.inf), (5.0, 5.0, 10.0), 2.0),
        (0.5, (1.0, math.inf), (0.0, 0.0), None),
        (0.5, (), (), None),
    ],
)
def test_quantiles_are_those_of_prometheus(
    share: float, bounds: tuple[float, ...], counts: tuple[float, ...], found: float | None
) -> None:
    assert quantile(share, bounds, counts) == pytest.approx(found)


def test_latencies_are_those_of_the_window_alone() -> None:
    def at(time: float, counts: tuple[float, ...]) -> Sample:
        return Sample(at=time, histograms={TTFT: Histogram(bounds=(1.0, 2.0, math.inf), counts=counts)})

    found = window(at(0.0, (100.0, 100.0, 100.0)), at(1.0, (100.0, 110.0, 110.0)))
    assert found
    assert found.ttft.p50 == pytest.approx(1.5)


def test_history_keeps_ten_minutes_and_forgets_a_restart() -> None:
    history = History()
    assert history.over(5.0) is None
    for second in range(700):
        history.add(sample(float(second), generation_tokens=10.0 * second))
    long = history.over(math.inf)
    assert long
    assert long.seconds == 600.0
    now = history.over(5.0)
    assert now
    assert (now.seconds, now.tokens_per_second) == (5.0, 10.0)
    history.add(sample(700.0, generation_tokens=0.0))
    assert history.over(math.inf) is None


def test_now_is_the_last_two_samples_where_they_are_far_apart() -> None:
    history = History()
    for second in (0.0, 30.0, 60.0):
        history.add(sample(second, generation_tokens=second))
    now = history.over(5.0)
    assert now
    assert now.seconds == 30.0


def test_the_board_in_rows_and_as_json() -> None:
    first, last = sample(0.0), sample(2.0, generation_tokens=60.0, drafts=10.0, draft_tokens=40.0,
                                      accepted_tokens=20.0, accepted_by_position=(9.0, 6.0, 3.0, 2.0))  # fmt: skip
    view = View(
        name="a", engine="docker", address="http://127.0.0.1:8000", vllm="0.32.0", patches=("one",), sample=last,
        now=window(first, last), lately=window(first, last),
    )  # fmt: skip
    gone = View(name="b", engine="process", address="http://127.0.0.1:8001", problem="exited")
    table = dict(rows([view, gone]))
    assert table["tokens/s"] == ["30.0", "-"]
    assert table["acceptance length"] == ["3.00", "-"]
    assert table["by position"] == ["█▅▃▂", "-"]
    assert table["engine"] == ["docker", "exited"]
    found = json.loads(json.dumps(document(Board(at=1.0, views=(view, gone)))))
    assert found["stacks"][0]["now"]["by_position"] == [0.9, 0.6, 0.3, 0.2]
    assert found["stacks"][1] == {
        "name": "b", "engine": "process", "address": "http://127.0.0.1:8001", "problem": "exited", "hang": None, "vllm": None,
        "patches": [], "gauges": None, "now": None, "lately": None,
    }  # fmt: skip


def test_a_gpu_in_one_line() -> None:
    full = GpuLoad(name="NVIDIA H200", clock_mhz=1980.0, power_w=512.3, temperature_c=61.0, memory_used=70 * 10**9)
    assert gpu_line(full) == "NVIDIA H200  512 W  1980 MHz  61 °C  70.0 GB used"
    assert gpu_line(GpuLoad(name="NVIDIA GB10", power_w=45.0)) == "NVIDIA GB10  45 W"


def test_bars_stay_within_their_characters() -> None:
    assert bars((-1.0, 0.0, 0.5, 1.0, 7.0)) == "▁▁▅██"


def test_the_dashboard_reads_only_counters_that_vllm_has() -> None:
    names = set(RECORDED.read_text().split())
    text = grafana(())
    known = {name.partition("{")[0] for name in names if name.startswith("vllm:")}
    used = {f"vllm:{part}" for part in _names(text)}
    assert used <= known, used - known
    assert len({tuple(sorted(panel["gridPos"].items())) for panel in json.loads(text)["panels"]}) == 12


def _names(text: str) -> set[str]:
    pieces = text.split("vllm:")[1:]
    return {"".join(letter for letter in _until_other(piece)) for piece in pieces}


def _until_other(piece: str) -> str:
    end = next((place for place, letter in enumerate(piece) if not (letter.isalnum() or letter == "_")), len(piece))
    return piece[:end]


@pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (tools/setup-tests.sh installs it on Debian)"
)
def test_promtool_accepts_the_configuration_and_the_rules(tmp_path: Path) -> None:
    (tmp_path / "gemmaspec-rules.yml").write_text(prometheus_rules(()))
    (tmp_path / "prometheus.yml").write_text(prometheus(()))
    promtool("check", "config", tmp_path / "prometheus.yml")
    write(tmp_path / "unit.yml", UNIT)
    promtool("test", "rules", tmp_path / "unit.yml")


def write(file: Path, value: Mapping[str, object]) -> None:
    file.write_text(yaml.safe_dump(dict(value)))


def promtool(*arguments: object) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def series(name: str, values: str) -> dict[str, str]:
    return {"series": f'vllm:{name}{{instance="a:1",model_name="tiny"}}', "values": values}


def expected(alert: str, at: str, *, severity: str, fires: bool) -> dict[str, object]:
    (rule,) = (one for one in yaml.safe_load(prometheus_rules(()))["groups"][0]["rules"] if one["alert"] == alert)
    said = {key: text.replace("{{ $labels.model_name }}", "tiny") for key, text in rule["annotations"].items()}
    labels = {"instance": "a:1", "model_name": "tiny", "severity": severity}
    return {
        "eval_time": at,
        "alertname": alert,
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": said}] if fires else [],
    }


UNIT: Mapping[str, object] = {
    "rule_files": ["gemmaspec-rules.yml"],
    "evaluation_interval": "15s",
    "tests": [
        {
            "name": "a draft that is dead, and one that is idle",
            "interval": "15s",
            "input_series": [
                series("spec_decode_num_drafts_total", "0+100x80"),
                series("spec_decode_num_accepted_tokens_total", "0+1x80"),
            ],
            "alert_rule_test": [
                expected("GemmaspecDraftIsDead", "4m", severity="warning", fires=False),
                expected("GemmaspecDraftIsDead", "15m", severity="warning", fires=True),
            ],
        },
        {
            "name": "a draft that works",
            "interval": "15s",
            "input_series": [
                series("spec_decode_num_drafts_total", "0+100x80"),
                series("spec_decode_num_accepted_tokens_total", "0+180x80"),
            ],
            "alert_rule_test": [expected("GemmaspecDraftIsDead", "18m", severity="warning", fires=False)],
        },
        {
            "name": "an idle server is not a dead draft, nor a hanging engine",
            "interval": "15s",
            "input_series": [
                series("spec_decode_num_drafts_total", "50x80"),
                series("spec_decode_num_accepted_tokens_total", "0x80"),
                series("generation_tokens_total", "500x80"),
                series("prompt_tokens_total", "500x80"),
                series("num_requests_running", "0x80"),
            ],
            "alert_rule_test": [
                expected("GemmaspecDraftIsDead", "18m", severity="warning", fires=False),
                expected("GemmaspecEngineHangs", "18m", severity="critical", fires=False),
            ],
        },
        {
            "name": "an engine that hangs",
            "interval": "15s",
            "input_series": [
                series("generation_tokens_total", "500x80"),
                series("prompt_tokens_total", "500x80"),
                series("num_requests_running", "1x80"),
            ],
            "alert_rule_test": [
                expected("GemmaspecEngineHangs", "1m", severity="critical", fires=False),
                expected("GemmaspecEngineHangs", "15m", severity="critical", fires=True),
            ],
        },
        {
            "name": "an engine that works on a long prompt",
            "interval": "15s",
            "input_series": [
                series("generation_tokens_total", "500x80"),
                series("prompt_tokens_total", "0+2048x80"),
                series("num_requests_running", "1x80"),
            ],
            "alert_rule_test": [expected("GemmaspecEngineHangs", "18m", severity="critical", fires=False)],
        },
    ],
}
