"""Phases, against lines of vLLM's sources and real logs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.run.ready.phases import MARKS, ORDER, Phase, PhaseTracker, phase_of

LOGS = Path(__file__).parent.parent / "logs"

LINES = [
    ("gemmaspec: patching vllm 0.32.0 at /usr/lib/vllm", Phase.PATCHING),
    ("gemmaspec: overlay ready in 4.2 ms, starting vllm", Phase.IMPORTING),
    ("gemmaspec: no overlay, because no file needs a patch, starting vllm", Phase.IMPORTING),
    (
        "(APIServer pid=9) INFO 11-20 18:02:28 [utils.py:233] non-default args: {'model_tag': 'x'}",
        "importing",
    ),
    (
        "(EngineCore pid=1) INFO 11-20 17:48:56 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with",
        "importing",
    ),
    (
        "(Worker_TP0 pid=1) INFO 11-20 17:48:56 [gpu_model_runner.py:4735] Starting to load model a/b...",
        "loading target",
    ),
    (
        "(EngineCore_DP0 pid=1) INFO 11-20 17:48:56 [model_runner.py:392] Loading model from scratch...",
        "loading target",
    ),
    (
        "(Worker pid=1) INFO 11-20 17:48:56 [gpu_model_runner.py:5071] Loading drafter model...",
        "loading draft",
    ),
    ("INFO 11-20 17:48:56 [monitor.py:40] [eagle_head] Starting torch.compile", "compiling"),
    (
        "INFO 11-20 17:48:56 [backends.py:1052] Using cache directory: /c/torch_compile_cache/a1/rank_0_0/backbone "
        "for vLLM's torch.compile",
        "compiling",
    ),
    ("INFO 11-20 17:48:56 [backends.py:1111] Dynamo bytecode transform time: 6.12 s", "compiling"),
    ("INFO 11-20 17:48:56 [gpu_worker.py:939] Compile and warming up model for size 2048", "compiling"),
    ("INFO 11-20 17:48:56 [kernel_warmup.py:367] Running FlashInfer autotune with 8192 tokens", "compiling"),
    ("\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/51", "capturing graphs"),
    (
        "Capturing CUDA graphs (decode, FULL):   3%|\rCapturing CUDA graphs (decode, FULL): 100%|####| 35/35",
        "capturing graphs",
    ),
    ("Capturing multi-module MTP CUDA graphs (FULL):  10%|", "capturing graphs"),
    ("INFO 11-20 17:48:56 [speculator.py:308] Capturing model for Eagle speculator...", "capturing graphs"),
    ("INFO 11-20 17:48:56 [speculator.py:110] Capturing model for speculator...", "capturing graphs"),
    (
        "INFO 11-20 17:48:56 [gpu_model_runner.py:1] Graph capturing finished in 24 secs, took 0.61 GiB",
        "warming up",
    ),
    (
        "INFO 11-20 17:48:56 [core.py:402] init engine (profile, create kv cache, warmup model) took 71.42 s "
        "(compilation: 40.00 s)",
        "warming up",
    ),
    ("\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO:     Application startup complete.", "warming up"),
]


@pytest.mark.parametrize(("line", "phase"), LINES, ids=lambda value: str(value)[:40])
def test_a_line_of_vllm_shows_its_phase(line: str, phase: Phase) -> None:
    assert phase_of(line) == phase


@pytest.mark.parametrize(
    "line",
    [
        "",
        "gemmaspec: patch draft-text-only: applies (0.21-0.33)",
        "(EngineCore pid=1) INFO 11-20 17:48:56 [loggers.py:1] the user said: Loading drafter model...",
        '(APIServer pid=1) INFO:     127.0.0.1:53096 - "GET /health HTTP/1.1" 200 OK',
        "(Worker pid=1) INFO 11-20 17:49:11 [default_loader.py:501] Loading weights took 0.02 seconds",
        "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 72.96it/s]",
    ],
)
def test_other_lines_show_none(line: str) -> None:
    assert phase_of(line) is None


def test_no_line_of_a_log_makes_a_server_ready() -> None:
    assert Phase.READY not in {mark.phase for mark in MARKS}
    assert set(Phase) - {mark.phase for mark in MARKS} == {Phase.READY}


def replay(log: str, *, speculates: bool = True) -> list[tuple[int, str]]:
    """The phases a real log goes through, with the number of the line that began each."""
    tracker = PhaseTracker(lambda: 0.0, speculates=speculates)
    lines = (LOGS / log).read_text().splitlines()
    return [(number, str(phase)) for number, line in enumerate(lines, 1) if (phase := tracker.feed(line))]


@pytest.mark.parametrize("log", sorted(path.name for path in LOGS.glob("*.log")))
def test_phases_of_a_real_log_only_go_forwards(log: str) -> None:
    seen = [ORDER[Phase(phase)] for _, phase in replay(log)]
    assert seen == sorted(set(seen))
    assert seen


def test_real_starts_go_through_their_phases() -> None:
    eager = ["importing", "loading target", "loading draft", "warming up"]
    assert [phase for _, phase in replay("vllm-0.32.0-ready.log")] == eager
    profiled = ["importing", "loading target", "loading draft", "compiling", "warming up"]
    assert [phase for _, phase in replay("vllm-0.20.2-ready.log")] == profiled


def test_real_starts_on_a_gpu_go_through_their_phases() -> None:
    """Gemma 4 31B and E2B in NVFP4 on one H200: drafting and compiled for the first time, eager, and alone again."""
    compiled = ["importing", "loading target", "loading draft", "compiling", "capturing graphs", "warming up"]
    assert [phase for _, phase in replay("vllm-0.26.0-gpu-pair-ready.log")] == compiled
    eager = ["importing", "loading target", "loading draft", "warming up"]
    assert [phase for _, phase in replay("vllm-0.26.0-gpu-eager-ready.log")] == eager
    alone = ["importing", "loading target", "compiling", "capturing graphs", "warming up"]
    assert [phase for _, phase in replay("vllm-0.26.0-gpu-target-ready.log", speculates=False)] == alone


def test_only_a_start_that_compiles_begins_to_when_the_models_are_loaded() -> None:
    config = "INFO 11-21 20:22:27 [core.py:116] Initializing a V1 LLM engine (v0.26.0) with config: model='m', "
    loaded = "INFO 11-21 20:22:36 [gpu_model_runner.py:5347] Model loading took 27.18 GiB memory and 7.0 seconds"
    for eager, begins in (("False", Phase.COMPILING), ("True", None)):
        tracker = PhaseTracker(lambda: 0.0, speculates=True)
        tracker.feed(f"{config}enforce_eager={eager}, seed=0")
        assert tracker.feed(loaded) == begins


def test_a_start_that_dies_stays_in_its_phase() -> None:
    assert replay("vllm-0.32.0-window-sizes.log")[-1][1] == "loading draft"
    assert replay("vllm-0.20.2-multimodal-guard.log")[-1][1] == "importing"


def test_the_second_model_runners_draft_is_seen_by_the_targets_last_line() -> None:
    """vllm/v1/worker/gpu/model_runner.py loads the draft without a word."""
    lines = [
        "(EngineCore pid=1) INFO 11-20 17:48:56 [model_runner.py:392] Loading model from scratch...",
        "(EngineCore pid=1) INFO 11-20 17:48:59 [default_loader.py:501] Loading weights took 3.02 seconds",
    ]
    drafting, alone = (PhaseTracker(lambda: 0.0, speculates=answer) for answer in (True, False))
    assert [drafting.feed(line) for line in lines] == [Phase.LOADING_TARGET, Phase.LOADING_DRAFT]
    assert [alone.feed(line) for line in lines] == [Phase.LOADING_TARGET, None]


def test_every_phase_keeps_its_own_time() -> None:
    now = 100.0
    tracker = PhaseTracker(lambda: now, speculates=True)
    now = 101.5
    tracker.feed(LINES[1][0])
    now = 131.5
    tracker.feed(LINES[5][0])
    now = 132.0
    assert tracker.feed(LINES[0][0]) is None
    assert tracker.durations() == {
        Phase.PATCHING: 1.5,
        Phase.IMPORTING: 30.0,
        Phase.LOADING_TARGET: 0.5,
    }


@given(st.text(), st.booleans())
def test_any_text_can_be_fed(text: str, speculates: bool) -> None:
    tracker = PhaseTracker(lambda: 0.0, speculates=speculates)
    before = ORDER[tracker.phase]
    tracker.feed(text)
    assert ORDER[tracker.phase] >= before


@pytest.mark.parametrize(
    "unit", ["(", "(a pid=", "[", "\x1b[", "Capturing a ", "Capturing model for a ", "\r", "gemmaspec: , "]
)
def test_a_hostile_line_takes_no_time(unit: str) -> None:
    began = time.process_time()
    phase_of(unit * 300_000)
    assert time.process_time() - began < 1
