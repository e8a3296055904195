"""The launch stage of `gemmaspec tune`: what is asked of the GPU's Python, and what is made of its answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import find_launches
import matrix_launches
import prompt_launches
import pytest
import searching

from gemmaspec.core import data
from gemmaspec.core.checkpoint.matrices import nvfp4_matrices
from gemmaspec.core.patching.evidence import OWN_LAUNCHES
from gemmaspec.core.profile.load import load_profile
from gemmaspec.measure.servers import tune_field
from gemmaspec.measure.tune.arms import Field, with_launches
from gemmaspec.measure.tune.launches import Launches, layers, reading, tokens
from gemmaspec.measure.tune.trials import TuneRequest
from gemmaspec.run.models.open import open_checkpoint
from tests.support.fake_nvidia_smi import FakeNvidiaSmi, card

ROW = {
    "key": "prompt:9,512,1", "best": "32,64,8,2", "turns": [[16.4, 8.5], [16.5, 8.4], [16.4, 8.5]], "tried": 13,
    "wrong": 0, "failed": 3,
}  # fmt: skip
WGMMA = (128, 128, 32, 64, 6, 1, "wgmma")
ANSWER = {"rows": [ROW]}
MATRIX = ROW | {"key": "matrix:9,5376,8192,8", "best": "128,64,64,32,4,2,mma", "turns": [[18.4, 16.8], [18.3, 16.9]]}


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
    chosen = prompt_launches.Chosen(kernel)
    query = SimpleNamespace(shape=(2048, 32, 512))
    options = {"query_ptr": query, "num_queries_per_kv": 8, "num_seqs": 1, "BLOCK_M": 16, "BLOCK_Q": 2, "TILE_SIZE": 32}
    chosen[(1025, 4)](**options)
    chosen.launch = (64, 128, 8, 2)
    chosen[(1025, 4)](**options)
    assert kernel.launched == [((1025, 4), 16, 32, None, None), ((2048 // 8 + 1, 4), 64, 128, 8, 2)]


def search(times: dict[Any, float | Exception], apart: dict[Any, float], *, most: int = 99) -> searching.Search:
    """Return a search whose launches take FAKE times and give FAKE results; there is time for `most` of them."""

    def took(launch: Any) -> float:
        took = times[launch]
        if isinstance(took, Exception):
            raise took
        return took

    found = searching.Search(took, lambda launch: apart.get(launch, 0.0), 0.06, lambda: found.tried < most)
    return found


SLOW, FAST, WRONG, LARGE = (16, 32, 8, 2), (32, 64, 8, 2), (64, 64, 8, 2), (128, 64, 8, 2)
TIMES = {None: 16.0, SLOW: 12.0, FAST: 8.0, WRONG: 1.0, LARGE: RuntimeError("out of resource: shared memory")}


def test_the_fastest_right_launch_is_kept_and_others_are_counted() -> None:
    found = search(TIMES, {WRONG: 0.5})
    found.attempt((SLOW, FAST, WRONG, LARGE))
    counted = {"tried": 4, "wrong": 1, "failed": 1}
    assert found.row("key") == {"key": "key", "best": "32,64,8,2", "turns": [(16.0, 8.0)] * 3, **counted}


def test_a_result_that_is_no_number_is_wrong() -> None:
    found = search(TIMES, {FAST: float("nan")})
    found.attempt([FAST])
    assert found.row("key") == {"key": "key", "best": "", "turns": [], "tried": 1, "wrong": 1, "failed": 0}


def test_what_was_found_before_the_time_was_over_counts() -> None:
    found = search(TIMES, {}, most=1)
    found.attempt((SLOW, FAST))
    assert (found.best, found.tried) == (SLOW, 1)


@pytest.mark.parametrize(
    ("most", "launch", "block"),
    [(8, (128, 64, 64, 32, 4, 2, "mma"), 16), (24, (128, 64, 64, 32, 4, 2, "mma"), 32), (24, WGMMA, 24)],
)
def test_humming_is_told_what_the_patch_tells_it(most: int, launch: Any, block: int) -> None:
    patch = next(data.PATCHES.glob("humming-launch-params/0.32.diff")).read_text()
    body = re.search(r"^\+def _tuning_config.*?(?=^\+\n)", patch, re.MULTILINE | re.DOTALL)
    assert body
    names: dict[str, Any] = {}
    exec(body[0].replace("\n+", "\n").removeprefix("+"), names)
    told = matrix_launches.tuning_config(most, launch)
    assert told == names["_tuning_config"](most, *launch)
    assert told["block_shape"][0] == told["warp_shape"][0] == block


def test_more_rows_than_an_mma_block_are_tried_with_wgmma_alone() -> None:
    assert {launch[6] for launch in matrix_launches.launches_of(16)} == {"mma", "wgmma"}
    assert {launch[6] for launch in matrix_launches.launches_of(24)} == {"wgmma"}
    for most in (8, 16, 24, 32, 40):
        for launch in matrix_launches.launches_of(most):
            assert OWN_LAUNCHES.fullmatch(f"matrix:9,5376,8192,{most}={','.join(map(str, launch))}")


def test_each_interval_of_humming_is_measured_at_its_largest_step() -> None:
    intervals = [(0, 8, {}), (8, 16, {}), (16, 24, {}), (24, 1 << 30, {})]
    assert matrix_launches.by_interval(intervals, [20, 1, 5, 40, 8]) == {8: 8, 24: 20, 1 << 30: 40}


class FakeMatrix(matrix_launches.Matrix):
    """A FAKE matrix, which takes FAKE times: only mma of three stages fits, and is faster than the released launch."""

    layer = '{"shape_n": 5376, "shape_k": 8192}'

    def __init__(self, released_error: float) -> None:
        self.errors = {None: released_error}

    def builds(self, most: int, launch: Any) -> bool:
        return launch[4:] == (3, 2, "mma")

    def error(self, most: int, launch: Any) -> float:
        return self.errors.get(launch, 0.002)

    def microseconds(self, most: int, launch: Any) -> float:
        return 24.0 if launch else 29.5


def test_a_matrix_is_launched_as_fits_and_as_exactly_as_released() -> None:
    row = FakeMatrix(0.002).row(8, 9, lambda: True)
    assert (row["key"], row["best"], row["tried"]) == ("matrix:9,5376,8192,8", "128,128,64,32,3,2,mma", 1)
    row = FakeMatrix(0.0019).row(8, 9, lambda: True)
    assert (row["best"], row["wrong"]) == ("", 1)
    assert FakeMatrix(0.002).row(24, 9, lambda: True)["tried"] == 0


@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_a_matrix_that_is_wrong_as_released_compares_nothing(error: float) -> None:
    with pytest.raises(searching.Impossible, match="Humming's own product"):
        FakeMatrix(error).row(8, 9, lambda: True)


class FakeGpu:
    """A FAKE torch: it has a GPU."""

    class cuda:  # noqa: N801
        @staticmethod
        def is_available() -> bool:
            return True


def test_what_breaks_on_the_way_leaves_what_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield MATRIX
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")

    monkeypatch.setitem(sys.modules, "torch", FakeGpu)
    monkeypatch.setattr(find_launches, "prompt_rows", lambda *_: iter([ROW]))
    monkeypatch.setattr(find_launches, "matrix_rows", broken)
    result = find_launches.found({})
    told = capsys.readouterr().err.splitlines()
    assert result == {"rows": [ROW, MATRIX], "problem": "CUDA error: an illegal memory access was encountered"}
    assert [len(json.loads(rows)["rows"]) for rows in told] == [1, 2]
    killed = reading([*told, "Alarm clock"])
    assert isinstance(killed, Launches)
    assert killed.variable == "prompt:9,512,1=32,64,8,2 matrix:9,5376,8192,8=128,64,64,32,4,2,mma"


def test_the_layers_of_a_model_are_those_of_one_gpu() -> None:
    text = open_checkpoint("google/gemma-4-31B-it", offline=True, shapes=True).text
    assert layers(text, tensor_parallel=1) == [
        {"heads": 32, "kv_heads": 4, "head": 512, "window": 0},
        {"heads": 32, "kv_heads": 16, "head": 256, "window": 1024},
    ]
    assert [row["kv_heads"] for row in layers(text, tensor_parallel=8)] == [1, 2]


def test_the_matrices_of_a_checkpoint_are_joined_and_split_as_vllm_does() -> None:
    model = open_checkpoint("LilaRest/gemma-4-31B-it-NVFP4-turbo", offline=True, shapes=True)
    swept = [(5376, 8192), (5376, 16384), (5376, 21504), (16384, 5376), (20480, 5376), (43008, 5376)]
    assert list(nvfp4_matrices(model, tensor_parallel=1)) == swept
    assert (21504, 5376) in nvfp4_matrices(model, tensor_parallel=2)
    assert (5376, 10752) in nvfp4_matrices(model, tensor_parallel=2)
    of_mlp = open_checkpoint("nvidia/Gemma-4-31B-IT-NVFP4", offline=True, shapes=True)
    assert nvfp4_matrices(of_mlp, tensor_parallel=1) == {(5376, 21504): 60, (43008, 5376): 60}


@pytest.mark.parametrize("ref", ["google/gemma-4-31B-it", "google/gemma-4-26B-A4B-it"])
def test_other_weights_have_no_matrices(ref: str) -> None:
    assert not nvfp4_matrices(open_checkpoint(ref, offline=True, shapes=True), tensor_parallel=1)


def test_a_step_multiplies_the_tokens_of_every_load_and_k() -> None:
    assert tokens((1, 4, 8), {0, 4}) == [1, 4, 5, 8, 20, 40]
    assert tokens((8,), {7}) == []


def test_an_answer_becomes_the_variable_that_the_patch_reads() -> None:
    found = reading(["a warning", json.dumps(ANSWER)])
    assert isinstance(found, Launches)
    assert found.variable == "prompt:9,512,1=32,64,8,2"
    assert OWN_LAUNCHES.fullmatch(found.variable)


def test_what_an_h200_printed_becomes_rows_that_the_patches_read() -> None:
    lines = (data.MEASUREMENTS / "kernels-h200-0.32.0.jsonl").read_text().splitlines()
    rows = [row for line in lines if (row := json.loads(line)).pop("kind") == "LAUNCH"]
    found = reading([json.dumps({"rows": rows})])
    assert str(found) == "20 of 26 launches can be faster, by up to 2.60 times"
    assert isinstance(found, Launches)
    assert found.variable
    assert "matrix:9,43008,5376,24=256,128,32,64,4,1,wgmma" in found.variable.split()
    assert "matrix:9,20480,5376,24" not in found.variable, "1.9 % in its worst turn"


@pytest.mark.parametrize(
    "own", [{"best": "", "turns": []}, {"turns": [[16.4, 16.2]]}, {"turns": [[16.4, 8.5], [16.5, 16.4]]}]
)
def test_what_gains_no_more_than_noise_in_any_turn_is_left_as_released(own: dict[str, Any]) -> None:
    found = reading([json.dumps(ANSWER | {"rows": [ROW | own]})])
    assert isinstance(found, Launches)
    assert found.variable is None


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ([], "it printed nothing"),
        (["Killed"], "Killed"),
        (['{"rows": [], "problem": "torch sees no\\u001b[31m GPU"}'], "torch sees no"),
        (['{"rows": []}'], "it measured nothing"),
        ([json.dumps({"rows": [ROW | {"best": "33,64,8,2"}]})], "impossible"),
        ([json.dumps({"rows": [ROW | {"best": "32,64,8,2,9"}]})], "impossible"),
        ([json.dumps({"rows": [ROW | {"key": "prompt:9,512,1=32,64,8,2 prompt:9,512,1"}]})], "impossible"),
        ([json.dumps({"rows": [ROW | {"turns": [[-1, 1]]}]})], "{"),
        (["[" * 9000], "["),
    ],
)
def test_anything_else_than_an_answer_is_a_reason(said: list[str], problem: str) -> None:
    found = reading(said)
    assert isinstance(found, str)
    assert problem in found
    assert "\x1b" not in found


def test_the_script_says_what_it_lacks_in_any_python() -> None:
    job = json.dumps({"layers": [], "matrices": [], "most_seconds": 60})
    done = subprocess.run([sys.executable, str(data.FIND_LAUNCHES), job], capture_output=True, text=True)
    assert done.returncode == 1
    assert "this Python lacks what is measured: No module named 'torch'" in str(reading(done.stderr.splitlines()))


class FakeGpuPython:
    """Writes down what the GPU's Python is asked for, and gives one answer."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []

    def __call__(self, _: object, server: Any, script: Any, job: str, *, limit_s: int) -> list[str]:
        self.jobs.append({**json.loads(job), "script": script.name, "server": server.name, "limit_s": limit_s})
        return [json.dumps(ANSWER)]


def launches_of(asked: FakeGpuPython, sets: tuple[str, ...], notes: list[str]) -> Launches | None:
    request = TuneRequest(
        profile="spark-31b-mtp",
        overrides=("runtime.vllm=0.32.0", *sets),
        engine="process",
        loads=(1, 4),
        ks=(4,),
        others=False,
        budget_s=200,
    )
    return tune_field.launches_of(tune_field.Compared.of(request), request, notes.append, asked)


@pytest.fixture
def asked() -> FakeGpuPython:
    return FakeGpuPython()


def test_tune_asks_for_the_layers_of_its_profile(asked: FakeGpuPython) -> None:
    notes: list[str] = []
    found = launches_of(asked, ("serve.kv_cache_dtype=fp8",), notes)
    assert found
    assert found.variable == "prompt:9,512,1=32,64,8,2"
    (job,) = asked.jobs
    assert (job["script"], job["server"], job["fp8"]) == ("find_launches.py", "spark-31b-mtp", True)
    assert [row["head"] for row in job["layers"]] == [512, 256]
    assert (job["seconds"], job["matrices"]) == (10, [])
    assert job["limit_s"] > job["most_seconds"] > 2 * job["seconds"]
    assert notes[1] == "  1 of 1 launches can be faster, by up to 1.93 times"


@pytest.mark.parametrize(
    ("sets", "capability", "number"),
    [
        ((), "9.0", 6),
        (("serve.attention_backend=FLASH_ATTN",), "9.0", 6),
        (("serve.linear_backend=marlin",), "9.0", 0),
        (("runtime.vllm=0.33.0", "image=vllm/vllm-openai:v0.33.0"), "9.0", 0),
        ((), "12.1", 0),
        (("serve.linear_backend=humming",), "12.1", 6),
    ],
)
def test_tune_asks_for_the_matrices_that_humming_multiplies(
    asked: FakeGpuPython, nvidia_smi: FakeNvidiaSmi, sets: tuple[str, ...], capability: str, number: int
) -> None:
    nvidia_smi.lists(card("NVIDIA H100 80GB HBM3", gib=79.65, capability=capability))
    launches_of(asked, ("machine=h100", "image=vllm/vllm-openai:v0.32.0", *sets), [])
    (job,) = asked.jobs
    assert len(job["matrices"]) == number
    assert job["tokens"] == [1, 4, 5, 20]
    assert not [row for row in job["layers"] if "serve.attention_backend=FLASH_ATTN" in sets]


@pytest.mark.parametrize(
    "sets",
    [
        ("machine=h200", "serve.attention_backend=FLASH_ATTN"),
        ('env.GEMMASPEC_LAUNCHES="prompt:9,512,1=32,64,8,2"',),
        ("machine=cpu", "patches.speed=off"),
    ],
)
def test_nothing_is_measured_that_the_server_would_not_launch(asked: FakeGpuPython, sets: tuple[str, ...]) -> None:
    assert launches_of(asked, sets, []) is None
    assert not asked.jobs


def test_what_was_found_is_tried_on_the_fastest_with_the_patch_that_reads_it() -> None:
    field = Field(arms=(), knobs=())
    (knob,) = with_launches(field, "p", ["a"], "prompt:9,512,1=32,64,8,2").knobs
    run = load_profile("spark-31b-mtp", overrides=(knob.overrides[0],)).profile
    assert run.env["GEMMASPEC_LAUNCHES"] == "prompt:9,512,1=32,64,8,2"
    assert knob.overrides[1] == "patches.speed=[a, triton-launch-params]"
    (knob,) = with_launches(field, "p", ["triton-launch-params"], "prompt:9,512,1=32,64,8,2").knobs
    assert knob.overrides[1] == "patches.speed=[triton-launch-params]", (
        "what auto takes elsewhere is not known to read it"
    )
    both = "prompt:9,512,1=32,64,8,2 matrix:9,5376,8192,8=128,64,32,64,4,3,wgmma"
    (knob,) = with_launches(field, "p", [], both).knobs
    assert knob.overrides[1] == "patches.speed=[humming-launch-params, triton-launch-params]"
