"""The launch stage of `gemmaspec tune`: what is asked of the GPU's Python, and what is made of its answer."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gemmaspec.core import data
from gemmaspec.core.launcher import tune_kernels
from gemmaspec.core.patching.evidence import OWN_LAUNCHES
from gemmaspec.core.profile.load import load_profile
from gemmaspec.measure.servers import tune_field
from gemmaspec.measure.tune.launches import Launches, layers, reading
from gemmaspec.measure.tune.tried import Field, with_launches
from gemmaspec.run.models.open import open_checkpoint

ROW = {
    "head": 512, "bytes": 1, "released": [16, 32, None, None], "released_ms": 16.4, "best": [32, 64, 8, 2],
    "best_ms": 8.5, "tried": 13, "wrong": 0, "failed": 3,
}  # fmt: skip
ANSWER = {"gpu": "NVIDIA H200", "capability": 9, "vllm": "0.32.0", "triton": "3.7.1", "rows": [ROW]}


class FakeKernel:
    """A FAKE kernel: its time and its result depend on how it is launched."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(**options: Any) -> None:
            own = [options.get(name) for name in ("BLOCK_M", "TILE_SIZE", "num_warps", "num_stages")]
            self.launched.append((grid, *own))

        return run


def test_another_launch_has_another_grid() -> None:
    kernel = FakeKernel()
    chosen = tune_kernels.Chosen(kernel)
    query = SimpleNamespace(shape=(2048, 32, 512))
    options = {"query_ptr": query, "num_queries_per_kv": 8, "num_seqs": 1, "BLOCK_M": 16, "BLOCK_Q": 2, "TILE_SIZE": 32}
    chosen[(1025, 4)](**options)
    chosen.launch = (64, 128, 8, 2)
    chosen[(1025, 4)](**options)
    assert kernel.launched == [((1025, 4), 16, 32, None, None), ((2048 // 8 + 1, 4), 64, 128, 8, 2)]
    assert chosen.stock == [16, 32, None, None]


def search(times: dict[tuple[int, ...] | None, float | Exception], apart: dict[tuple[int, ...], float]) -> Any:
    """Return a search whose launches take FAKE times and give FAKE results."""
    chosen = tune_kernels.Chosen(None)

    def milliseconds(_: object, run: Any) -> float:
        took = times[chosen.launch]
        if isinstance(took, Exception):
            raise took
        return took

    class Result:
        def __init__(self, value: float) -> None:
            self.value = value

        def float(self) -> Result:
            return self

        def clone(self) -> Result:
            return self

        def __sub__(self, other: Result) -> Result:
            return Result(self.value - other.value)

        def __truediv__(self, other: Result) -> Result:
            return Result(abs(self.value) / abs(other.value))

        def norm(self) -> Result:
            return self

        def item(self) -> float:
            return self.value

    return tune_kernels.Search(None, chosen, lambda: Result(1 + apart.get(chosen.launch or (), 0.0)), milliseconds)


def test_the_fastest_right_launch_is_kept_and_others_are_counted() -> None:
    slow, fast, wrong, large = (16, 32, 8, 2), (32, 64, 8, 2), (64, 64, 8, 2), (128, 64, 8, 2)
    found = search(
        {None: 16.0, slow: 12.0, fast: 8.0, wrong: 1.0, large: RuntimeError("out of resource: shared memory")},
        {wrong: 0.5},
    )
    for launch in (slow, fast, wrong, large):
        found.attempt(launch, 0.06)
    assert (found.best, found.best_ms, found.released_ms) == (fast, 8.0, 16.0)
    assert (found.tried, found.wrong, found.failed) == (4, 1, 1)


def test_a_result_that_is_no_number_is_wrong() -> None:
    launch = (32, 64, 8, 2)
    found = search({None: 16.0, launch: 1.0}, {launch: float("nan")})
    found.attempt(launch, 0.06)
    assert (found.best, found.wrong) == (None, 1)


def test_the_layers_of_a_model_are_those_of_one_gpu() -> None:
    text = open_checkpoint("google/gemma-4-31B-it", offline=True, shapes=True).text
    assert layers(text, tensor_parallel=1) == [
        {"heads": 32, "kv_heads": 4, "head": 512, "window": 0},
        {"heads": 32, "kv_heads": 16, "head": 256, "window": 1024},
    ]
    assert [row["kv_heads"] for row in layers(text, tensor_parallel=8)] == [1, 2]


def test_an_answer_becomes_the_variable_that_the_patch_reads() -> None:
    found = reading(["a warning", json.dumps(ANSWER)])
    assert isinstance(found, Launches)
    assert found.variable == "prompt:9,512,1=32,64,8,2"
    assert OWN_LAUNCHES.fullmatch(found.variable)


@pytest.mark.parametrize("own", [{"best": None, "best_ms": None}, {"best_ms": 16.2}])
def test_what_gains_nothing_is_left_as_released(own: dict[str, Any]) -> None:
    found = reading([json.dumps(ANSWER | {"rows": [ROW | own]})])
    assert isinstance(found, Launches)
    assert found.variable is None


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ([], "it printed nothing"),
        (["Killed"], "Killed"),
        (['{"problem": "torch sees no\\u001b[31m GPU"}'], "torch sees no"),
        ([json.dumps(ANSWER | {"rows": [ROW | {"best": [33, 64, 8, 2]}]})], "impossible"),
        ([json.dumps(ANSWER | {"rows": [ROW | {"best": [32, 64, 8, 2, 9]}]})], "impossible"),
        ([json.dumps(ANSWER | {"rows": [ROW | {"released_ms": -1}]})], "{"),
        (["[" * 9000], "["),
    ],
)
def test_anything_else_than_an_answer_is_a_reason(said: list[str], problem: str) -> None:
    found = reading(said)
    assert isinstance(found, str)
    assert problem in found
    assert "\x1b" not in found


def test_the_script_says_what_it_lacks_in_any_python() -> None:
    job = json.dumps({"layers": [], "fp8": False, "new": 1, "context": 1, "seconds": 1})
    done = subprocess.run([sys.executable, "-I", str(data.TUNE_KERNELS), job], capture_output=True, text=True)
    assert done.returncode == 1
    assert "this Python lacks what is measured: No module named 'torch'" in str(reading(done.stderr.splitlines()))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the GPU's Python is asked for; its answer is a FAKE."""
    found: list[dict[str, Any]] = []

    def said(_: object, server: Any, script: Any, job: str, *, limit_s: int) -> list[str]:
        found.append({**json.loads(job), "script": script.name, "server": server.name, "limit_s": limit_s})
        return [json.dumps(ANSWER)]

    monkeypatch.setattr(tune_field, "said_on_gpu", said)
    monkeypatch.setattr(
        tune_field, "choose_engine", lambda *_, **__: (SimpleNamespace(name="docker", remote=False), "")
    )
    return found


def test_tune_asks_for_the_layers_of_its_profile(asked: list[dict[str, Any]]) -> None:
    loaded = load_profile("spark-31b-mtp", overrides=("serve.kv_cache_dtype=fp8",))
    found = tune_field.launches_of(loaded, None, (), lambda _: None, budget_s=200)
    assert found
    assert found.variable == "prompt:9,512,1=32,64,8,2"
    (job,) = asked
    assert (job["script"], job["server"], job["fp8"]) == ("tune_kernels.py", "spark-31b-mtp", True)
    assert [row["head"] for row in job["layers"]] == [512, 256]
    assert job["limit_s"] > 2 * job["seconds"] == 40


@pytest.mark.parametrize(
    "sets",
    [
        ("machine=h200", "serve.attention_backend=FLASH_ATTN"),
        ('env.GEMMASPEC_LAUNCHES="prompt:9,512,1=32,64,8,2"',),
        ("machine=cpu", "patches.speed=off"),
    ],
)
def test_nothing_is_measured_that_the_server_would_not_launch(
    asked: list[dict[str, Any]], sets: tuple[str, ...]
) -> None:
    loaded = load_profile("spark-31b-mtp", overrides=sets)
    assert tune_field.launches_of(loaded, None, (), lambda _: None, budget_s=200) is None
    assert not asked


def test_what_was_found_is_tried_on_the_fastest_with_the_patch_that_reads_it() -> None:
    field = Field(arms=(), knobs=())
    (knob,) = with_launches(field, "p", ["a"], "prompt:9,512,1=32,64,8,2").knobs
    run = load_profile("spark-31b-mtp", overrides=(knob.overrides[0],)).profile
    assert run.env["GEMMASPEC_LAUNCHES"] == "prompt:9,512,1=32,64,8,2"
    assert knob.overrides[1] == "patches.speed=[a, triton-launch-params]"
    (knob,) = with_launches(field, "p", ["triton-launch-params"], "prompt:9,512,1=32,64,8,2").knobs
    assert len(knob.overrides) == 1
    both = "prompt:9,512,1=32,64,8,2 matrix:9,5376,8192,8=128,64,32,64,4,3,wgmma"
    (knob,) = with_launches(field, "p", [], both).knobs
    assert knob.overrides[1] == "patches.speed=[humming-launch-params, triton-launch-params]"
