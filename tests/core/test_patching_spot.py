"""What follows from a measurement on the spot, for which server, GPU and code it holds, and what is shown by it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core import data, launcher
from gemmaspec.core.patching import spot
from gemmaspec.core.patching.choice import choose
from gemmaspec.core.patching.evidence import family_of
from gemmaspec.core.patching.patch import Patch, Shelf
from gemmaspec.core.patching.plan import compile_plan
from gemmaspec.core.patching.runs_on import RunsOn
from gemmaspec.core.patching.spot import Case, Kept, Key, Measurement, Step, verdict
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.resolved.resolve import resolved_of
from gemmaspec.run.stack.speed import speed_choice
from gemmaspec.serve.spot import keep

GEOMETRY, SPLIT = "triton-group-geometry", "triton-verify-split-kv"
PLACE = "NVIDIA GB10, 580.95.05, torch 2.13.0, triton 3.7.1"
SHAPE: Mapping[str, str | int | None] = {"target": "some/target", "k": 4, "tensor_parallel": 1}
SERVER = RunsOn(vllm="0.33.0", family="gb10", method="mtp", backend="TRITON_ATTN", shape=SHAPE)


def case(
    released: float, patched: float, *, part: str = "step", load: tuple[int, int] = (1, 8192), **more: Any
) -> Case:
    own = {"name": "full layers", "times": 10, "bound": 0.01, "off": 0.0}
    return Case(**{**own, "part": part, "load": load, "released": (released,), "patched": (patched,), **more})


def measurement(*cases: Case, patch: str = GEOMETRY, **more: Any) -> Measurement:
    return Measurement(**{"patch": patch, "state": "measured", "cases": cases, **more})


def kept(found: Measurement, *, at: str = "2026-11-28T10:00:00Z", step_ms: float = 100.0, **key: Any) -> Kept:
    shelf = Shelf([data.PATCHES])
    own = {
        "patch": found.patch, "digest": spot.digest_of(shelf[found.patch], shelf, "0.33.0"), "vllm": "0.33.0",
        "capability": "12.1", "place": PLACE, "shape": dict(SHAPE),
    }  # fmt: skip
    steps = tuple(Step(load=load, ms=step_ms) for load in {case.load: None for case in found.cases})
    return Kept(key=Key(**{**own, **key}), at=at, measurement=found, steps=steps)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))


FASTER, SLOWER = case(2.0, 1.0), case(1.0, 1.04)
STEP = [Step(load=(1, 8192), ms=100.0)]


@pytest.mark.parametrize(
    ("found", "steps", "taken", "because"),
    [
        (measurement(FASTER), STEP, True, "a step gains up to 11 %"),
        (measurement(case(2.0, 1.8)), STEP, False, "a step gains 2 %"),
        (measurement(FASTER, SLOWER), STEP, False, "full layers: 1.04 times as long, though a step gains up to 11 %"),
        (measurement(SLOWER), STEP, False, "full layers: 1.04 times as long"),
        (measurement(case(1.0, 1.02), FASTER), STEP, True, "a step gains up to 11 %"),
        (measurement(FASTER), [], None, "nothing says how long the whole takes of which it is a part"),
        (measurement(case(2.0, 1.0, part="prompt")), STEP, None, "nothing says how long the whole takes"),
        (measurement(case(2.0, 1.0, part="prompt"), case(3.0, 2.0, part="rest")), [], True, "a prompt gains up to 25 %"),
        (measurement(case(2.0, 1.0, part="prompt"), case(99.0, 99.0, part="rest")), [], False, "a prompt gains 1 %"),
        (measurement(case(1.0, 1.1, part="prompt"), case(3.0, 3.0, part="rest")), [], False, "full layers: 1.10 times"),
        # what is left alone was timed on both trees, and only the released one's time counts
        (measurement(case(2.0, 1.9, part="prompt"), case(3.0, 6.0, part="rest")), [], False, "a prompt gains 2 %"),
        (measurement(state="idle"), STEP, None, "its server makes no call here that it changes"),
        # the calls take longer than what is predicted of the whole
        (measurement(case(40.0, 20.0)), STEP, True, "a step gains up to 100 %"),
        (measurement(state="wrong", side="patched", detail="0.2 off"), STEP, False, "wrong values: 0.2 off"),
        (measurement(state="crashed", side="patched", detail="signal 11"), STEP, False, "the patched vLLM died: signal"),
        (measurement(FASTER, state="timeout", side="patched"), STEP, False, "the patched vLLM hung"),
        (measurement(state="crashed", side="released", detail="no GPU"), STEP, None, "not measured (crashed): no GPU"),
        (measurement(state="failed", detail="a fault"), STEP, None, "not measured (failed): a fault"),
        (measurement(state="unfit", side="patched"), STEP, None, "not measured (unfit)"),
    ],
)  # fmt: skip
def test_what_follows_from_a_measurement(
    found: Measurement, steps: list[Step], taken: bool | None, because: str
) -> None:
    decided = verdict(found, steps)
    assert decided.taken is taken
    assert decided.because.startswith(because)


def test_a_patch_is_taken_where_it_was_measured_and_nowhere_else() -> None:
    shelf = Shelf([data.PATCHES])
    assert GEOMETRY in choose("auto", [SERVER], shelf).left_out
    keep(kept(measurement(FASTER)))
    choice = choose("auto", [SERVER], shelf)
    assert choice.taken[GEOMETRY] == (launcher.Measured("0.33.0", "", PLACE),)
    assert choice.because[GEOMETRY] == "measured here on 2026-11-28: a step gains up to 11 %"
    others: list[dict[str, Any]] = [
        {"vllm": "0.32.0"},
        {"family": "hopper", "method": "none"},
        {"shape": {**SHAPE, "tensor_parallel": 2}},
        {"shape": {**SHAPE, "target": "another/target"}},
        {"capability": "12.0"},
    ]
    for other in others:
        assert GEOMETRY not in choose("auto", [dataclasses.replace(SERVER, **other)], shelf).taken, other


@pytest.mark.parametrize("other", [{"digest": "0" * 64}, {"vllm": "0.32.0"}, {"capability": "9.0"}, {"shape": {}}])
def test_a_measurement_under_another_key_says_nothing(other: dict[str, Any]) -> None:
    keep(kept(measurement(FASTER), **other))
    assert GEOMETRY in choose("auto", [SERVER], Shelf([data.PATCHES])).left_out


def test_the_newest_measurement_decides() -> None:
    keep(kept(measurement(FASTER), at="2026-11-27T10:00:00Z"))
    keep(kept(measurement(state="wrong", side="patched"), at="2026-11-28T10:00:00Z", place=f"{PLACE}, rebuilt"))
    choice = choose("auto", [SERVER], Shelf([data.PATCHES]))
    assert choice.left_out[GEOMETRY] == "measured here on 2026-11-28: wrong values"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (measurement(state="wrong", side="patched", patch=SPLIT), "wrong values"),
        (measurement(case(1.0, 1.5), patch=SPLIT), "1.50 times as long"),
    ],
)
def test_what_was_measured_here_comes_before_what_ships(found: Measurement, reason: str) -> None:
    server = RunsOn(vllm="0.32.0", family="hopper", method="mtp", backend="TRITON_ATTN", shape=SHAPE)
    shelf = Shelf([data.PATCHES])
    assert SPLIT in choose("auto", [server], shelf).taken
    digest = spot.digest_of(shelf[SPLIT], shelf, "0.32.0")
    keep(kept(found, digest=digest, vllm="0.32.0", capability="9.0"))
    assert reason in choose("auto", [server], shelf).left_out[SPLIT]


@pytest.mark.parametrize("state", ["failed", "unfit", "crashed"])
def test_a_fault_leaves_the_decision_as_it_was(state: str) -> None:
    server = RunsOn(vllm="0.32.0", family="hopper", method="mtp", backend="TRITON_ATTN", shape=SHAPE)
    shelf = Shelf([data.PATCHES])
    before = choose("auto", [server], shelf)
    digest = spot.digest_of(shelf[SPLIT], shelf, "0.32.0")
    fault = measurement(state=state, side="released", patch=SPLIT)
    keep(kept(fault, digest=digest, vllm="0.32.0", capability="9.0"))
    assert choose("auto", [server], shelf) == before


def test_a_file_that_somebody_else_wrote_is_as_if_it_were_not_there() -> None:
    file = keep(kept(measurement(FASTER)))
    own = file.read_text()
    assert len(spot.kept_of(GEOMETRY)) == 1
    document = json.loads(own)
    forged = [
        json.dumps({**document, "signed": "0" * 64}),
        json.dumps({**document, "measurement": {**document["measurement"], "state": "failed"}}),
        json.dumps({key: value for key, value in document.items() if key != "signed"}),
        "{",
        "[]",
        "",
    ]
    for text in forged:
        file.write_text(text)
        assert spot.kept_of(GEOMETRY) == (), text[:40]
    file.write_text(own)
    file.rename(file.with_name(f"{GEOMETRY}-0000000000000000.json"))
    assert spot.kept_of(GEOMETRY) == ()


def test_the_digest_is_of_all_that_is_measured(tmp_path: Path) -> None:
    shelf = Shelf([data.PATCHES])
    longer = "triton-3d-longer-block"
    digests = {
        spot.digest_of(shelf[name], shelf, release) for name in (SPLIT, longer) for release in ("0.31.0", "0.32.0")
    }
    assert len(digests) == 4, "that of a patch is also of the one that it needs"


def test_the_shape_is_the_same_whether_or_not_the_checkpoint_was_read() -> None:
    profile = load_profile("spark-31b-mtp").profile
    shape = spot.shape_of(resolved_of(profile))
    assert shape["k"] == 7
    for sets in (["serve.tensor_parallel_size=2", "machine=nvidia"], ["speculative.num_speculative_tokens=4"]):
        assert spot.shape_of(resolved_of(load_profile("spark-31b-mtp", overrides=sets).profile)) != shape


def test_a_profile_takes_what_was_measured_for_its_own_server() -> None:
    shelf, profile = Shelf([data.PATCHES]), load_profile("spark-31b-mtp").profile
    assert GEOMETRY in speed_choice(profile, shelf).left_out
    keep(kept(measurement(FASTER), shape=spot.shape_of(resolved_of(profile))))
    assert speed_choice(profile, shelf).taken[GEOMETRY][0].place == PLACE
    changed = load_profile("spark-31b-mtp", overrides=["speculative.num_speculative_tokens=4"]).profile
    assert GEOMETRY in speed_choice(changed, shelf).left_out


def _decided(where: tuple[launcher.Measured, ...], here: str, capabilities: frozenset[str] = frozenset()) -> str:
    """Return what the launcher says of a patch whose lines fit, beside vLLM 0.33.0."""
    shelf = Shelf([data.PATCHES])
    plan = launcher.parse_plan(compile_plan("p", (), (), (), shelf, speed={GEOMETRY: where}))
    assert plan.patches[0].where == where
    why = launcher.unmeasured(plan.patches[0], "0.33.0", lambda: capabilities, lambda: here)
    return why[0] if why else ""


def test_the_launcher_takes_it_on_the_gpu_with_the_driver_and_versions_alone() -> None:
    row = launcher.Measured("0.33.0", "", PLACE)
    assert _decided((row,), PLACE) == ""
    other = PLACE.replace("580.95", "590.10")
    assert _decided((row,), other) == f"it was measured with {PLACE}, and here is {other}"
    assert _decided((row,), "") == f"it was measured with {PLACE}, and here is nothing that is known"
    shipped = launcher.Measured("0.33.0", "9.0")
    assert _decided((row, shipped), other, frozenset(["9.0"])) == ""
    assert "compute capability 12.0" in _decided((row, shipped), other, frozenset(["12.0"]))


def test_a_plan_says_a_place_only_where_there_is_one() -> None:
    shelf = Shelf([data.PATCHES])
    plan = compile_plan("p", (), (), (), shelf, speed={GEOMETRY: (launcher.Measured("0.33.0", "9.0"),)})
    assert plan["patches"][0]["where"] == [{"vllm": "0.33.0", "capability": "9.0"}]


HOPPER = RunsOn(vllm="0.32.0", family="hopper", capability="9.0", method="mtp", backend="TRITON_ATTN", shape=SHAPE)


def _without(family: str, shelf: Shelf) -> dict[str, Patch]:
    """The patches, without the cells of a family of GPUs."""
    return {
        id_: dataclasses.replace(
            patch, evidence=tuple(run for run in patch.evidence if family_of(run.capability) != family)
        )
        for id_, patch in shelf.items()
    }


def test_without_hoppers_cells_a_hopper_is_a_gpu_that_nobody_has_measured() -> None:
    """Then what a later vLLM does on every GPU is taken, and the rest once it is measured there."""
    shelf = Shelf([data.PATCHES])
    shipped = choose("auto", [HOPPER], shelf)
    assert {"gemma4-fused-norms", "triton-launch-params", GEOMETRY} <= {*shipped.taken}
    patches = _without("hopper", shelf)
    left = choose("auto", [HOPPER], patches)
    assert {*left.taken} < {*shipped.taken}
    assert {*left.taken} == {*left.because}, "only backports, which say why"
    found = measurement(FASTER, patch="gemma4-fused-norms")
    key = {"digest": spot.digest_of(shelf[found.patch], shelf, "0.32.0"), "vllm": "0.32.0", "capability": "9.0"}
    keep(kept(found, **key))
    again = choose("auto", [HOPPER], patches)
    assert {*again.taken} - {*left.taken} == {"gemma4-fused-norms"}
    assert again.because["gemma4-fused-norms"].startswith("measured here on 2026-11-28")
