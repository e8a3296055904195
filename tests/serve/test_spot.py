"""`patch measure` for a profile: what it would measure, what it keeps, and what a later start makes of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemmaspec.check.proof.environment import triton_folder
from gemmaspec.check.use_cases import predict
from gemmaspec.check.use_cases.server_facts import ServerFacts, facts_of
from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.patching import spot as kept_spot
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.resolved.resolve import resolved_of
from gemmaspec.run.machine import nvidia
from gemmaspec.run.stack.speed import speed_choice
from gemmaspec.serve import doctor_gpu, spot
from gemmaspec.serve.decide import UpRequest
from tests.support import real
from tests.support.fake_nvidia_smi import FakeNvidiaSmi
from tests.support.real import cpu_python
from tests.support.spot_job import JOB

NORMS = "gemma4-fused-norms"
V32 = ("image=vllm/vllm-openai:v0.32.0", "runtime.vllm=0.32.0")
GB10 = nvidia.Gpu(name="NVIDIA GB10", driver="580.95.05", capability="12.1", memory=None, free=None)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def gb10(nvidia_smi: FakeNvidiaSmi) -> None:
    """A FAKE GPU: its name alone is believed."""
    nvidia_smi.lists(GB10)


def request(
    *patches: str, sets: tuple[str, ...] = V32, interpreter: object = "/usr/bin/python3"
) -> spot.MeasureRequest:
    own = (*sets, f"runtime.python={interpreter}")
    return spot.MeasureRequest(profile="spark-31b-mtp", overrides=own, engine="process", patches=patches)


def test_the_calls_are_at_the_shapes_of_the_profiles_server() -> None:
    planned = spot.plan(spot.MeasureRequest(profile="spark-31b-mtp"))
    full, sliding = planned.job["layers"]
    assert full == {"heads": 32, "kv_heads": 4, "head": 512, "window": 0, "count": 10}
    assert (sliding["kv_heads"], sliding["window"], sliding["count"]) == (16, 1024, 50)
    assert (planned.job["model"], planned.job["fp8"], planned.job["k"]) == ([16, 512], True, 7)
    assert planned.job["loads"] == [[1, 1024], [1, 8192], [1, 130816], [4, 1024], [4, 8192]]
    assert "triton-verify-split-kv" in planned.left_out
    two = spot.plan(spot.MeasureRequest(profile="nvidia2-31b-mtp"))
    assert two.job["layers"][0]["heads"] == 16
    assert two.left_out[NORMS] == "it changes nothing where 2 GPUs share a model"
    assert two.job["weights"] == planned.job["weights"] // 2


def test_matrices_are_measured_where_humming_may_multiply_them() -> None:
    planned = spot.plan(spot.MeasureRequest(profile="nvidia-31b-mtp"))
    assert [5376, 21504, 60] in planned.job["matrices"]
    assert 29e9 < planned.job["weights"] < 30e9
    (humming,) = [patch for patch in planned.patches if patch.id == "humming-launch-params"]
    assert planned.seconds_of(humming) > planned.seconds
    marlin = spot.plan(spot.MeasureRequest(profile="nvidia-31b-mtp", overrides=("serve.linear_backend=marlin",)))
    assert marlin.job["matrices"] == []


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"profile": "tiny-cpu"}, "patches for speed are for GPUs alone"),
        ({"profile": "spark-31b-mtp", "patches": ["draft-text-only"]}, "draft-text-only is not a patch for speed"),
        ({"profile": "spark-31b-mtp", "overrides": ["image=somebody/nightly:latest"]}, "the release .* is not known"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(asked: dict[str, Any], why: str) -> None:
    with pytest.raises((EnvironmentMissing, UsageError), match=why):
        spot.measure(spot.MeasureRequest(**asked), print)


@pytest.mark.usefixtures("gb10")
def test_the_gpu_must_be_there_and_that_of_the_profile(nvidia_smi: FakeNvidiaSmi) -> None:
    with pytest.raises(UsageError, match=r"compute capability 9\.0, and this one has 12\.1"):
        spot.measure(spot.MeasureRequest(profile="nvidia-31b-mtp", overrides=["machine=h100"]), print)
    nvidia_smi.lists()
    with pytest.raises(EnvironmentMissing, match="shows no GPU"):
        spot.measure(request(), print)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "said nothing"),
        (["Killed"], "said Killed"),
        (['{"schema": 1, "results": []}'], "it does not say on what"),
        (['{"schema": 1, "results": [], "place": "x", "problem": "no vllm"}'], "no vllm"),
        (['{"schema": 1, "results": [], "place": "x"}', "a later line"], "said a later line"),
        (['{"schema": 1, "results": [], "place": "x"}'], "about other patches"),
        (['{"schema": 1, "results": [{"patch": "a", "state": "fine"}], "place": "x"}'], "said"),
    ],
)
def test_an_answer_that_is_none_is_not_kept(lines: list[str], why: str) -> None:
    with pytest.raises(EnvironmentMissing, match=why):
        spot.read(lines, ["a"])


def test_what_would_be_measured_is_said_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patch", "measure", "spark-31b-mtp", "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert NORMS in document["patches"]
    assert document["left_out"]["humming-launch-params"] == "not for vLLM 0.33.0"
    assert run(["patch", "measure", "spark-31b-mtp", "--dry-run"]) == 0
    assert "would measure gemma4-fused-norms, " in capsys.readouterr().out


@pytest.mark.parametrize("release", ["0.32.0", "0.33.0"])
def test_a_step_has_a_length_at_every_load_also_where_predict_gives_no_figure(release: str) -> None:
    asked = ("machine=h200", f"image=vllm/vllm-openai:v{release}", f"runtime.vllm={release}")
    request = spot.MeasureRequest(profile="nvidia-31b-mtp", overrides=asked)
    planned = spot.plan(request)
    lengths = {step.load: step.ms for step in spot.steps_of(planned, request)}
    assert [list(load) for load in lengths] == planned.job["loads"]
    assert lengths[1, 1024] < lengths[1, 16128] < lengths[8, 8192]
    # 14.4 to 17.4 ms were measured of one request after 8,192 tokens, with other caches
    assert 10 < lengths[1, 8192] < 20


def test_a_step_that_predict_does_not_say_is_computed_from_facts_that_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []

    def counted(loaded: Loaded) -> ServerFacts:
        read.append(loaded.profile.name)
        return facts_of(loaded)

    monkeypatch.setattr(predict, "facts_of", counted)
    asked = ("machine=h200", "image=vllm/vllm-openai:v0.33.0", "runtime.vllm=0.33.0")
    request = predict.PredictRequest(
        profile="nvidia-31b-mtp", overrides=asked, ks=(3,), concurrencies=(1,), contexts=(16128,)
    )
    assert not predict.predict_profile(request).rows
    read.clear()
    assert predict.step_of(request)
    assert read == ["nvidia-31b-mtp"]


def test_a_step_of_several_gpus_has_none_where_predict_gives_no_figure() -> None:
    request = spot.MeasureRequest(profile="nvidia2-31b-mtp", overrides=("machine=nvidia",))
    assert spot.steps_of(spot.plan(request), request) == ()


@pytest.mark.real_process
def test_without_a_gpu_that_torch_sees_every_decision_stays_as_it_was(
    gb10: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # what this Python was given is no part of the one that runs vLLM
    (tmp_path / "torch.py").write_text("raise SystemExit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    profile = load_profile("spark-31b-mtp", overrides=V32).profile
    before = speed_choice(profile, Shelf([data.PATCHES]))
    outcome = spot.measure(request(NORMS, interpreter=cpu_python()), print)
    (found,) = outcome.found
    assert (found.kept.measurement.state, found.kept.measurement.side) == ("crashed", "released")
    assert found.verdict.taken is None
    assert found.verdict.because.startswith("not measured (crashed): ")
    assert "CUDA" in found.verdict.because or "NVIDIA" in found.verdict.because
    assert speed_choice(profile, Shelf([data.PATCHES])) == before


@pytest.mark.network
@pytest.mark.real_process
def test_a_start_decides_by_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gb10: None) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GEMMASPEC_STATE", str(real.SHARED))
        triton = triton_folder(cpu_python(), progress=print)
    monkeypatch.setattr(spot, "job_of", lambda *_: {**JOB, "loads": [[1, 40]]})
    monkeypatch.setattr(spot, "bundle", functools.partial(spot.bundle, paths=[str(triton)]))
    monkeypatch.setattr(spot, "steps_of", lambda *_: (kept_spot.Step(load=(1, 40), ms=100.0),))
    store = tmp_path / "state" / kept_spot.FOLDER
    outcome = spot.measure(request(NORMS, interpreter=cpu_python()), print)
    (found,) = outcome.found
    assert found.kept.measurement.state == "measured"
    assert found.kept.key.place.startswith("NVIDIA GB10, 580.95.05, 12.1, [N/A], [N/A], torch 2.13.0")
    # an interpreted kernel takes many times as long as torch's own
    assert found.verdict.taken is False
    profile = load_profile("spark-31b-mtp", overrides=V32).profile
    choice = speed_choice(profile, Shelf([data.PATCHES]))
    assert choice.left_out[NORMS].startswith("measured here on 2")
    assert choice.left_out[NORMS].endswith("times as long")
    assert [file.name for file in store.iterdir()] == [found.kept.key.name]


def kept_for(patch: str, *, driver: str = GB10.driver) -> kept_spot.Kept:
    """What was measured of a patch for the server of `request`, on a GB10."""
    shelf = Shelf([data.PATCHES])
    profile = load_profile("spark-31b-mtp", overrides=V32).profile
    key = kept_spot.Key(
        patch=patch, digest=kept_spot.digest_of(shelf[patch], shelf, "0.32.0"), vllm="0.32.0", capability="12.1",
        place=f"NVIDIA GB10, {driver}, torch 2.13.0, triton 3.7.1", shape=kept_spot.shape_of(resolved_of(profile)),
    )  # fmt: skip
    found = kept_spot.Measurement(patch=patch, state="failed", detail="a test")
    return kept_spot.Kept(key=key, at="2026-11-28T10:00:00Z", measurement=found)


class FakeMeasuring:
    """Measures nothing, and keeps what it was asked."""

    def __init__(self, error: GemmaspecError | None = None) -> None:
        self.asked: list[spot.MeasureRequest] = []
        self.error = error

    def __call__(self, request: spot.MeasureRequest, _: Callable[[str], None]) -> None:
        self.asked.append(request)
        if self.error:
            raise self.error


@pytest.mark.usefixtures("gb10")
def test_before_a_start_only_what_nothing_is_kept_of_is_measured() -> None:
    fake = FakeMeasuring()
    names = [patch.id for patch in spot.plan(request()).patches]
    spot.measure_first(request(), print, measuring=fake)
    spot.keep(kept_for(NORMS))
    spot.measure_first(request(), print, measuring=fake)
    spot.keep(kept_for(names[1], driver="590.10"))
    spot.measure_first(request(), print, measuring=fake)
    without = tuple(name for name in names if name != NORMS)
    assert [tuple(one.patches) for one in fake.asked] == [tuple(names), without, without]
    for name in without:
        spot.keep(kept_for(name))
    spot.measure_first(request(), print, measuring=fake)
    assert len(fake.asked) == 3


@pytest.mark.usefixtures("gb10")
@pytest.mark.parametrize("sets", [("patches.speed=off",), ("patches.speed=[triton-group-geometry]",)])
def test_a_profile_that_chooses_itself_is_not_measured(sets: tuple[str, ...]) -> None:
    fake = FakeMeasuring()
    spot.measure_first(request(sets=(*V32, *sets)), print, measuring=fake)
    assert fake.asked == []


@pytest.mark.usefixtures("gb10")
def test_a_fault_before_a_start_is_said_and_stops_nothing(nvidia_smi: FakeNvidiaSmi) -> None:
    said: list[str] = []
    fails = FakeMeasuring(EnvironmentMissing("the image is not on this machine"))
    unknown = spot.MeasureRequest(profile="nvidia-31b-mtp", overrides=["image=a/nightly:b"])
    spot.measure_first(request(), said.append, measuring=fails)
    spot.measure_first(unknown, said.append, measuring=fails)
    nvidia_smi.lists()
    spot.measure_first(request(), said.append, measuring=fails)
    assert said[0] == "patches for speed are not measured: the image is not on this machine"
    assert "is not known" in said[1]
    assert len(said) == 2


@pytest.mark.usefixtures("gb10")
@pytest.mark.parametrize(("measure", "times"), [("true", 1), ("false", 0)])
def test_up_measures_only_where_the_profile_asks_for_it(measure: str, times: int) -> None:
    fake = FakeMeasuring()
    wanted = UpRequest(profile="spark-31b-mtp", overrides=(f"patches.measure={measure}",))
    spot.measure_if_asked(wanted, print, measuring=fake)
    assert [one.profile for one in fake.asked] == ["spark-31b-mtp"] * times


def test_doctor_names_what_this_gpu_has_not_measured_and_the_command() -> None:
    loaded = load_profile("spark-31b-mtp")
    subject: Any = SimpleNamespace(loaded=loaded, profile=loaded.profile, gpus=(GB10,))
    (row,) = doctor_gpu.speed(subject)
    assert row.message.endswith("triton-group-geometry; gemmaspec patch measure spark-31b-mtp")
    assert row.state == "ok"
    assert not list(doctor_gpu.speed(SimpleNamespace(loaded=None, profile=None, gpus=())))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("patch", "because"),
    [("triton-launch-params", "a prompt gains up to 25 %"), ("triton-group-geometry", "a step gains up to 11 %")],
)
def test_what_an_h200_answered_is_read_and_both_patches_are_taken(patch: str, because: str) -> None:
    """A server of that GPU says the same: its first token after 8,192 tokens came 23 % earlier with the first patch."""
    recorded = json.loads((Path(__file__).parents[1] / "data" / "measured-here-h200.json").read_text())
    answer = spot.read([json.dumps(recorded["answers"][patch])], [patch])
    sets = ("machine=h200", "image=vllm/vllm-openai:v0.33.0")
    asked = spot.MeasureRequest(profile=recorded["profile"], overrides=sets, patches=(patch,))
    planned = spot.plan(asked)
    (measurement,) = answer.results
    assert kept_spot.verdict(measurement, spot.steps_of(planned, asked)) == kept_spot.Verdict(
        taken=True, because=because
    )
