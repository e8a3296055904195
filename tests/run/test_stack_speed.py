"""Which speed patches a profile's plan takes, and why not the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from gemmaspec.core import data
from gemmaspec.core.errors import PatchError, ProfileError
from gemmaspec.core.patching.choice import choose, is_shown, why_not
from gemmaspec.core.patching.evidence import OWN_LAUNCHES, is_twice
from gemmaspec.core.patching.patch import Patch, Shelf, load_patch, load_patches
from gemmaspec.core.patching.runs_on import RunsOn
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.model import Profile
from gemmaspec.run.stack.build import profile_plan
from gemmaspec.run.stack.speed import speed_choice, untried
from tests.support.lint_cases import BASE, MTP, TEXT_ONLY, TRITON
from tests.support.speed_patches import CLAIM, evidence, row, write_speed_patch

V32 = "image=vllm/vllm-openai:v0.32.0"
UNMEASURED = "not measured with"


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Patch]:
    folder = tmp_path_factory.mktemp("patches")
    write_speed_patch(folder)
    write_speed_patch(folder, "a-second", more="needs: [faster]\n")
    write_speed_patch(folder, "unproven", pays="")
    of_defects = {name: patch for name, patch in load_patches().items() if not patch.is_speed}
    return {**of_defects, **load_patches(folder)}


def profile(folder: Path, *sets: str, no_spec: bool = False) -> Profile:
    (folder / "mine.yaml").write_text(BASE)
    return load_profile(str(folder / "mine.yaml"), overrides=(V32, *MTP, *sets), no_spec=no_spec).profile


def test_auto_takes_what_was_measured_there_after_what_it_needs(tmp_path: Path, patches: Mapping[str, Patch]) -> None:
    choice = speed_choice(profile(tmp_path, TRITON), patches)
    assert list(choice.taken) == ["faster", "a-second"]
    assert [(one.vllm, one.capability) for one in choice.taken["faster"]] == [("0.32.0", "")]
    assert choice.left_out == {"unproven": "no cells show a gain yet"}
    plan = profile_plan(profile(tmp_path, TRITON, "patches.required=[kv-spec-uniform-valueerror]"), patches)
    assert [one["id"] for one in plan["patches"]] == ["kv-spec-uniform-valueerror", "faster", "a-second"]
    assert plan["patches"][2]["needs"] == ["faster"]


def test_a_release_of_the_range_without_cells_of_its_own_is_not_shown(patches: Mapping[str, Patch]) -> None:
    known = RunsOn(vllm="0.32.0+cu130", family="hopper", capability="9.0", method="mtp", backend="TRITON_ATTN")
    patch = patches["faster"]
    assert is_shown(patch, known)
    for other in ({"vllm": "0.32.1"}, {"method": "none"}, {"backend": "FLASH_ATTN"}, {"family": "gb10"}):
        assert not is_shown(patch, dataclasses.replace(known, **other))
    assert why_not(patch, [dataclasses.replace(known, vllm="0.32.1")]) == f"{UNMEASURED} vLLM 0.32.1"


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ((TRITON, "image=vllm/vllm-openai:v0.33.0"), f"{UNMEASURED} vLLM 0.33.0"),
        ((TRITON, "machine=dgx-spark"), f"{UNMEASURED} GPUs of the family gb10"),
        ((TRITON, "machine=cpu"), "for GPUs alone, and the machine cpu has none"),
        ((TRITON, "speculative.method=eagle3"), f"{UNMEASURED} the method eagle3"),
        ((), f"{UNMEASURED} the attention backend TRITON_FLASH_ATTN"),
        ((TEXT_ONLY,), f"{UNMEASURED} the attention backend FLASH_ATTN"),
        (("target.model=/somewhere",), "which attention backend vLLM chooses is not known"),
        ((TRITON, "runtime.vllm=0.99.0"), "vLLM 0.99.0 is not a known release, and only releases were measured"),
    ],
)
def test_auto_leaves_out_the_rest(
    tmp_path: Path, patches: Mapping[str, Patch], sets: tuple[str, ...], why: str
) -> None:
    choice = speed_choice(profile(tmp_path, *sets), patches)
    assert not choice.taken
    assert choice.left_out["faster"] == why


def test_a_patch_with_cells_that_claims_nothing_is_called_measured(tmp_path: Path) -> None:
    write_speed_patch(tmp_path, "slower", pays="", cells=evidence(row(), row(["slower"], step_ms=40)))
    assert why_not(load_patches(tmp_path)["slower"], []) == "measured, and it claims no setting in which it pays"


def test_without_speculation_only_cells_without_it_count(tmp_path: Path) -> None:
    alone = evidence(row(method="none", k=0), row(["faster"], method="none", k=0, step_ms=9))
    write_speed_patch(tmp_path / "patches", pays=CLAIM.replace("mtp", "none"), cells=alone)
    patches = load_patches(tmp_path / "patches")
    assert speed_choice(profile(tmp_path, TRITON), patches).left_out["faster"] == f"{UNMEASURED} the method mtp"
    assert list(speed_choice(profile(tmp_path, TRITON, no_spec=True), patches).taken) == ["faster"]


def test_any_gpu_leaves_the_choice_to_the_launcher(tmp_path: Path, patches: Mapping[str, Patch]) -> None:
    choice = speed_choice(profile(tmp_path, TRITON, "machine=nvidia"), patches)
    assert [(one.vllm, one.capability) for one in choice.taken["faster"]] == [("0.32.0", "9.0")]


def test_an_image_that_states_no_release_leaves_it_to_the_launcher_too(
    tmp_path: Path, patches: Mapping[str, Patch]
) -> None:
    choice = speed_choice(profile(tmp_path, TRITON, "image=owner/nightly:cu130"), patches)
    assert [one.vllm for one in choice.taken["faster"]] == ["0.32.0"]


def test_off_and_a_list(tmp_path: Path, patches: Mapping[str, Patch]) -> None:
    assert not speed_choice(profile(tmp_path, TRITON, "patches.speed=off"), patches).taken
    named = speed_choice(profile(tmp_path, "patches.speed=[unproven]"), patches)
    assert named.taken == {"unproven": ()}
    plan = profile_plan(profile(tmp_path, "patches.speed=[unproven]"), patches)
    assert [(one["id"], one["purpose"], one["where"]) for one in plan["patches"]] == [("unproven", "speed", [])]


@pytest.mark.parametrize(
    ("sets", "problem"),
    [
        ("patches.speed=[fastr]", "patches.speed: unknown patch fastr; did you mean faster?"),
        ("patches.speed=[draft-text-only]", "draft-text-only corrects a defect; list it under patches.required"),
        ("patches.required=[faster]", "patch faster is for speed, so no start depends on it"),
        ("patches.speed=[a-second]", "patch a-second needs faster, which is not listed"),
    ],
)
def test_a_wrong_list_is_one_sentence(tmp_path: Path, patches: Mapping[str, Patch], sets: str, problem: str) -> None:
    with pytest.raises(PatchError) as error:
        profile_plan(profile(tmp_path, sets), patches)
    assert problem in error.value.message


@pytest.mark.parametrize("value", ["yes", "fast", "3", "{a: 1}"])
def test_a_value_that_is_neither_is_one_sentence(tmp_path: Path, value: str) -> None:
    with pytest.raises(ProfileError) as error:
        profile(tmp_path, f"patches.speed={value}")
    assert error.value.message.splitlines() == [
        "--set patches.speed: patches.speed: must be auto, off, or a list of patches for speed, such as [a, b]"
    ]


def test_a_broken_patch_folder_stops_no_start(tmp_path: Path, patches: Mapping[str, Patch]) -> None:
    from gemmaspec.core.patching.patch import Shelf

    write_speed_patch(tmp_path / "patches")
    (write_speed_patch(tmp_path / "patches", "broken") / "evidence.json").write_text("{")
    assert list(speed_choice(profile(tmp_path, TRITON), Shelf((tmp_path / "patches",))).taken) == ["faster"]


def test_a_broken_patch_that_another_needs_leaves_both_out(tmp_path: Path) -> None:
    from gemmaspec.core.patching.patch import Shelf

    (write_speed_patch(tmp_path / "patches", "broken") / "evidence.json").write_text("{")
    write_speed_patch(tmp_path / "patches", more="needs: [broken]\n")
    choice = speed_choice(profile(tmp_path, TRITON), Shelf((tmp_path / "patches",)))
    assert (choice.taken, choice.left_out) == ({}, {"faster": "needs broken, which is left out"})


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("prompt:9,512,1=32,64,8,2", True),
        ("prompt:12,512,1=32,64,8,2 prompt:12,256,2=64,16,4,5", True),
        ("prompt:9,512,1=32,16,8,2", False),  # a tile of FP8 has at least 32 keys
        ("prompt:99,512,1=32,64,8,2", False),
        ("prompt:\uff19,512,1=32,64,8,2", False),  # a digit that is not ASCII
        ("prompt:9,512,1=32,64,8,2 prompt:9,512,1=16,64,8,2", False),
        ("prompt:9,512,1=48,64,8,2", False),
        ("prompt:9,512,1=32,64,8", False),
        ("9,512,1=32,64,8,2", False),
        ("prompt:9,512,1=32,64,8,2 matrix:9,43008,5376,8=256,64,32,64,6,2,wgmma", True),
        ("matrix:9,43008,5376,8=256,64,32,64,6,2,umma", False),
        ("matrix:9,43008,5376=256,64,32,64,6,2,mma", False),
        ("matrix:9,43008,5376,8=100,64,32,64,6,2,mma", False),
        ("matrix:9,0,5376,8=128,64,32,64,6,2,mma", False),
        ("matrix:9,43008,0,8=128,64,32,64,6,2,mma", False),
        ("matrix:9,43008,5376,0=128,64,32,64,6,2,mma", False),
        ("matrix:9,43008,5376,8=0,64,32,64,6,2,mma", False),
        ("matrix:9,43008,5376,8=128,64,32,64,0,2,mma", False),
        ("matrix:9,43008,5376,8=128,64,32,64,6,0,mma", False),
        ("matrix:9,43008,5376,8=128,64,32,64,99999,2,mma", False),
        ("matrix:9,43008,5376,8=99999,64,32,64,6,2,mma", False),
    ],
)
def test_launch_parameters_of_ones_own_have_a_form(value: str, fits: bool) -> None:
    assert (OWN_LAUNCHES.fullmatch(value) is not None and not is_twice(value)) is fits


def test_a_patch_of_other_targets_is_left_out_with_a_reason() -> None:
    shelf = Shelf(data.patch_folders())
    for name, takes in (("nvidia-31b-mtp", True), ("nvidia-26b-a4b-mtp", False)):
        chosen = speed_choice(load_profile(name, overrides=("machine=h100",)).profile, shelf)
        assert ("gemma4-fused-norms" in chosen.taken) is takes
        assert "humming-launch-params" in chosen.taken
        assert takes or chosen.left_out["gemma4-fused-norms"] == "for other targets (*31b*, *12b*)"


@pytest.mark.parametrize(("release", "taken"), [("0.32.0", ["triton-verify-split-kv"]), ("0.33.0", [])])
@pytest.mark.parametrize("family", ["gb10", "ampere", "ada"])
def test_what_a_later_release_does_everywhere_needs_no_cells_of_a_gpu(
    family: str, release: str, taken: list[str]
) -> None:
    server = RunsOn(vllm=release, family=family, method="mtp", backend="TRITON_ATTN")
    choice = choose("auto", [server], Shelf((data.PATCHES,)))
    assert list(choice.taken) == taken
    assert dict(choice.because) == dict.fromkeys(taken, "as vLLM 0.33.0 does")


@pytest.mark.parametrize(
    "other", [{"vllm": "0.25.1"}, {"method": "none"}, {"backend": "FLASH_ATTN"}, {"backend": None}, {"vllm": "0.33.0"}]
)
def test_a_backport_is_for_its_releases_methods_and_backends(other: dict[str, str | None]) -> None:
    server = RunsOn(vllm="0.32.0", family="gb10", method="mtp", backend="TRITON_ATTN")
    assert not choose("auto", [dataclasses.replace(server, **other)], Shelf((data.PATCHES,))).taken  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("origin", "numbers", "taken"),
    [
        ('"backport, vllm 0.33.0"', True, True),
        ('"backport, vllm 0.33.0"', False, False),
        ("own", True, False),
        ('"backport, https://github.com/vllm-project/vllm/pull/1"', True, False),
    ],
)
def test_a_backport_needs_a_release_and_proven_numbers(origin: str, numbers: bool, taken: bool, tmp_path: Path) -> None:
    folder = write_speed_patch(tmp_path, more=f"origin: {origin}\n")
    if numbers:
        (folder / "numbers.py").write_text("def check(): pass\n")
    server = RunsOn(vllm="0.32.0", family="gb10", method="mtp", backend="TRITON_ATTN")
    assert bool(choose("auto", [server], {"faster": load_patch(folder)}).taken) is taken


def test_what_was_measured_on_other_gpus_alone_is_what_tune_tries() -> None:
    shelf = Shelf((data.PATCHES,))
    own = load_profile("spark-31b-mtp", overrides=[V32]).profile
    assert untried(own, shelf) == ("gemma4-fused-norms", "triton-3d-longer-block", "triton-group-geometry")
    assert not untried(load_profile("spark-31b-mtp", overrides=[V32, "machine=h100", TRITON]).profile, shelf)
    assert not untried(load_profile("spark-31b-mtp", overrides=[V32, "patches.speed=off"]).profile, shelf)
    assert not untried(load_profile("tiny-cpu-mtp").profile, shelf)


@pytest.mark.parametrize(
    ("sets", "idle", "why"),
    [
        (("serve.tensor_parallel_size=2",), "[several-gpus]", "it changes nothing where 2 GPUs share a model"),
        (("serve.extra_args=[--enable-lora]",), "[lora]", "it changes nothing with LoRA adapters"),
        (("serve.tensor_parallel_size=2",), "[lora]", ""),
        (("serve.extra_args=[--no-enable-lora]",), "[lora]", ""),
        (("serve.tensor_parallel_size=2", "env.GEMMASPEC_LAUNCHES=matrix:9,8,8,8=1"), "[several-gpus]", ""),
        ((), "[several-gpus, lora]", ""),
    ],
)
def test_a_patch_that_would_change_nothing_is_left_out(
    tmp_path: Path, sets: tuple[str, ...], idle: str, why: str
) -> None:
    write_speed_patch(tmp_path / "patches", more=f"idle_with: {idle}\n")
    choice = speed_choice(profile(tmp_path, TRITON, *sets), load_patches(tmp_path / "patches"))
    assert list(choice.taken) == ([] if why else ["faster"])
    assert choice.left_out.get("faster", "") == why


def test_norms_and_launches_of_matrices_are_left_out_where_two_gpus_share_a_model() -> None:
    idle = {"gemma4-fused-norms", "humming-launch-params"}
    one = load_profile("nvidia-31b-mtp", overrides=("machine=h100",)).profile
    two = load_profile("nvidia-31b-mtp", overrides=("machine=h100", "serve.tensor_parallel_size=2")).profile
    alone, shared = speed_choice(one, load_patches()), speed_choice(two, load_patches())
    assert idle < set(alone.taken)
    assert set(shared.taken) == set(alone.taken) - idle
    assert {shared.left_out[name] for name in idle} == {"it changes nothing where 2 GPUs share a model"}
