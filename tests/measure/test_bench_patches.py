"""Patches for speed in measurements: arms of bench, sets that are never mixed, and what predict and compare say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.check.predict.predict import Cells, baseline_of, predict
from gemmaspec.cli.app import run
from gemmaspec.cli.text.compare import lines as compare_lines
from gemmaspec.core.errors import PatchError, UsageError
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.rows import parse_rows, setting_json
from gemmaspec.measure.bench.cells import Arm, arms_of
from gemmaspec.measure.bench.compare import compare
from gemmaspec.measure.servers import bench_server
from gemmaspec.measure.servers.bench import patch_arms
from gemmaspec.run.engine.server import Server, server_at
from gemmaspec.run.kept import measurements
from gemmaspec.run.kept.stacks import Started
from tests.check.test_predict import drafted, row
from tests.measure.test_bench import at, drafted_tokens
from tests.measure.test_bench_compare import drawn, result
from tests.measure.test_bench_compare import row as measured
from tests.support.fake_engine import FakeMachine
from tests.support.fake_vllm import FakeVllm
from tests.support.lint_cases import BASE, MTP, TRITON
from tests.support.speed_patches import CLAIM, evidence, write_speed_patch
from tests.support.speed_patches import row as cell

SHIPPED = (
    "gemma4-fused-norms, humming-launch-params, triton-group-geometry, triton-launch-params, triton-verify-split-kv, "
    "triton-3d-longer-block"
)
"""The shipped patches for speed that this profile takes by itself; the first four also without a draft."""
SETS = ("image=vllm/vllm-openai:v0.32.0", *MTP, TRITON)


@pytest.fixture
def patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile that takes two patches for speed, of which one acts without speculation too; `second` needs `faster`."""
    folder = tmp_path / "patches"
    both = CLAIM.replace("[mtp]", "[mtp, none]")
    alone = [cell(method="none", k=0), cell(["always"], method="none", k=0, step_ms=20)]
    write_speed_patch(folder, "always", pays=both, cells=evidence(cell(), cell(["always"], step_ms=20), *alone))
    for name, more in (("faster", ""), ("second", "needs: [faster]\n")):
        file = write_speed_patch(folder, name, more=more) / "patch.yaml"
        file.write_text(file.read_text().replace("speculation_only: false", "speculation_only: true"))
    monkeypatch.setenv("GEMMASPEC_PATCHES", str(folder))
    (tmp_path / "mine.yaml").write_text(BASE)
    return tmp_path / "mine.yaml"


def arms(profile: Path, *sets: str, ks: tuple[int, ...] = (0, 4)) -> list[tuple[str, tuple[str, ...]]]:
    wanted = arms_of(load_profile(str(profile), overrides=SETS).profile, ks)
    found = patch_arms(wanted, sets, str(profile), SETS)
    return [(arm.name, tuple(one for one in arm.overrides if one.startswith("patches"))) for arm in found]


def test_patches_are_an_arm_and_servers_that_run_the_same_are_measured_once(patched: Path) -> None:
    assert arms(patched, "speed", "none") == [
        ("none/0/patches speed", ()),
        ("none/0/patches none", ("patches.speed=off",)),
        ("mtp/4/patches speed", ()),
        ("mtp/4/patches none", ("patches.speed=off",)),
    ]
    assert arms(patched, "speed", "without second") == [
        ("none/0/patches speed", ()),
        ("mtp/4/patches speed", ()),
        ("mtp/4/patches without second", (f"patches.speed=[always, faster, {SHIPPED}]",)),
    ]
    assert arms(patched, "without faster", ks=(4,))[0][1] == (f"patches.speed=[always, {SHIPPED}]",), "second needs it"
    assert arms(patched, "none", "always+faster", ks=(4,))[1][1] == ("patches.speed=[always, faster]",)
    assert arms(patched) == [("none/0", ()), ("mtp/4", ())]


@pytest.mark.parametrize(
    ("sets", "error", "problem"),
    [
        (("speed", "without nothing"), UsageError, "without nothing: mine does not take it; the patches for speed"),
        (("none", "fastr"), PatchError, "patches.speed: unknown patch fastr; did you mean faster?"),
        (("none", "draft-text-only"), PatchError, "draft-text-only corrects a defect"),
    ],
)
def test_a_set_that_is_none(patched: Path, sets: tuple[str, ...], error: type[Exception], problem: str) -> None:
    with pytest.raises(error) as found:
        arms(patched, *sets)
    assert problem in str(found.value)


def test_sets_that_do_not_differ_are_told_with_the_reason(patched: Path) -> None:
    with pytest.raises(UsageError) as found:
        patch_arms([Arm(method="draft_model", k=4)], ("speed", "none"), "tiny-cpu", ())
    assert "tiny-cpu takes no patch for speed" in found.value.message
    assert "faster: for GPUs alone, and the machine cpu has none" in found.value.message


@pytest.mark.parametrize("options", [["--speed-patches", "speed,none", "--running"], ["--speed-patches", ","]])
def test_options_that_make_no_sense(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "tiny-cpu", *options]) == 2
    assert "--speed-patches" in capsys.readouterr().err


def test_what_a_server_reports_is_what_its_cells_carry(machine: FakeMachine) -> None:
    rows = [
        {"patch": "fix", "purpose": "defect", "state": "applies", "detail": ""},
        {"patch": "second", "purpose": "speed", "state": "applies", "detail": ""},
        {"patch": "faster", "purpose": "speed", "state": "left-out", "detail": "it does not fit"},
    ]
    log = ["INFO [cuda.py:446] Using AttentionBackendEnum.TRITON_FLASH_ATTN backend."]
    machine.report, machine.log = {"patches": rows}, log
    started = Started(engine="process", server=server_at("http://127.0.0.1:9", option="", name="x"), profile="x")
    said = {"patches": ["second"], "left_out": {"faster": "it does not fit"}}
    drafting = load_profile("nvidia-31b-mtp", overrides=("serve.attention_backend=",)).profile
    heads = {"attention_backend": "TRITON_FLASH_ATTN", "draft_backend": "TRITON_FLASH_ATTN"}
    assert bench_server._kernels(started, drafting) == {**said, **heads}
    log += ["INFO [cuda.py:446] Using AttentionBackendEnum.FLASH_ATTN backend.", "Capturing model for speculator..."]
    log += [
        "Using HummingNvFp4LinearKernel for NVFP4 GEMM",
        "Initializing a V1 LLM engine (v0.32.0) with config: ",
    ]
    log[-1] += (
        "model='m', dtype=torch.bfloat16, kv_cache_dtype=auto, {'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}"
    )
    kept = {"graphs": "full", "head_graphs": "full", "kv_cache_dtype": "bf16", "linear_kernel": "humming"}
    heads["draft_backend"] = "FLASH_ATTN"
    assert bench_server._kernels(started, drafting) == {**said, **heads, **kept}
    log.append(
        "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for x; setting cudagraph_mode=PIECEWISE"
    )
    lost = {"graphs": "piecewise", "head_graphs": "none"}
    assert bench_server._kernels(started, drafting) == {**said, **heads, **kept, **lost}
    alone = load_profile("nvidia-31b-mtp", overrides=("serve.attention_backend=triton_attn",), no_spec=True).profile
    machine.report = None
    found = bench_server._kernels(started, alone)
    assert (found["patches"], found["attention_backend"]) == (None, "TRITON_ATTN")
    assert not {"draft_backend", "head_graphs"} & found.keys()


def test_a_run_with_patches_keeps_their_cells_apart(
    fake_api: FakeVllm,
    patched: Path,
    tmp_path: Path,
    machine: FakeMachine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def starts(server: Server) -> None:
        """Report those of the plan's patches as applied that do not ship, and log the backend."""
        fake_api.k = drafted_tokens(server)
        patches = json.loads((server.folder / "plan.json").read_text())["patches"]
        own = [one for one in patches if one["id"] in ("always", "faster", "second")]
        rows = [{"patch": one["id"], "purpose": one["purpose"], "state": "applies", "detail": ""} for one in own]
        machine.report = {"vllm": "0.32.0", "patches": rows}
        machine.log = ["INFO [cuda.py:446] Using AttentionBackendEnum.TRITON_ATTN backend."]

    machine.starting = starts
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "a.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    own = [*at(fake_api), "--prompts", str(tmp_path / "prompts"), "--out", str(tmp_path / "out"), "--max-tokens", "24"]
    sets = [word for one in SETS for word in ("--set", one)]
    tries = ["--k", "0,4", "--concurrency", "1", "--rounds", "1", "--repeats", "0", "--speed-patches", "speed,none"]
    assert run(["bench", str(patched), *tries, *own, *sets]) == 0
    said = capsys.readouterr().out
    assert "always + faster + second" in said
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [(one["k"], one["patches"]) for one in found["rows"]] == [
        (0, ["always"]), (0, []), (4, ["always", "faster", "second"]), (4, [])
    ]  # fmt: skip
    assert {one["attention_backend"] for one in found["rows"]} == {"TRITON_ATTN"}
    rows = parse_rows(json.dumps(found), file="result.json")
    asked = Cells(ks=(0, 4), concurrencies=(1,), idle_alone=frozenset({"faster", "second"}))
    predicted = predict(rows, asked)
    assert {(one.k, one.setting.patches) for one in predicted} == {
        (0, ("always", "faster", "second")), (4, ("always", "faster", "second")), (0, ()), (4, ())
    }  # fmt: skip
    assert "patches for speed: always + faster + second" in drawn(found)["text"]


def test_cells_of_different_sets_and_backends_never_explain_each_other() -> None:
    slow, fast = drafted(tokens_per_second=50.0), drafted(tokens_per_second=200.0, patches=["faster"])
    other = drafted(tokens_per_second=400.0, attention_backend="FLASH_ATTN")
    rows = parse_rows(json.dumps({"rows": [row(), slow, fast, other]}), file="x")
    found = predict(rows, Cells(ks=(0, 2), concurrencies=(1,), idle_alone=frozenset({"faster"})))
    speeds = {one.setting.patches: one for one in found if one.k == 2 and one.setting.backend is None}
    assert speeds[()].tokens_per_second == pytest.approx(50, rel=0.05)
    assert speeds["faster",].tokens_per_second == pytest.approx(200, rel=0.05)
    base = baseline_of(speeds["faster",], found)
    assert base
    assert base.tokens_per_second == pytest.approx(90, rel=0.1), "without a draft the patch does nothing"
    assert str(speeds["faster",].setting) == 'compile "default", with faster'
    assert [setting_json(one.setting)["patches"] for one in rows if one.setting.patches] == [["faster"]]
    unknown = parse_rows(json.dumps({"rows": [row(), drafted(patches=None)]}), file="x")
    assert len({one.setting for one in predict(unknown, Cells(ks=(0, 2), concurrencies=(1,)))}) == 2


@pytest.mark.parametrize("patches", ["faster", [3], {"a": 1}, [""]])
def test_patches_that_are_no_list_are_refused(patches: object) -> None:
    with pytest.raises(UsageError, match=r"patches is .*, and (must be|is empty)"):
        parse_rows(json.dumps({"rows": [row(patches=patches)]}), file="x")


def test_of_own_measurements_those_with_the_profiles_patches_count(patched: Path) -> None:
    profile = load_profile(str(patched), overrides=SETS).profile
    taken = ["always", "faster", "second", *SHIPPED.split(", ")]
    given = [
        row(),
        row(patches=["always", *SHIPPED.split(", ")[:4]]),
        drafted(),
        drafted(patches=taken),
        drafted(patches=None),
    ]
    rows = parse_rows(json.dumps({"rows": given}), file="x")
    assert measurements.of_plan(rows, measurements.taken_by(profile)) == (rows[1], rows[3])
    off = load_profile(str(patched), overrides=(*SETS, "patches.speed=off")).profile
    assert measurements.of_plan(rows, measurements.taken_by(off)) == (rows[0], rows[2])


OTHERS = ({"images": False}, {"kv_cache_dtype": "fp8"}, {"linear_kernel": "marlin"}, {"acceptance_by": "synthetic"})


def test_saved_cells_of_another_set_are_kept(patched: Path) -> None:
    loaded = load_profile(str(patched), overrides=SETS)
    measurements.save(loaded, [drafted(), drafted(patches=["faster"])])
    measurements.save(loaded, [drafted(tokens_per_second=80.0, patches=["faster"])])
    found = {one.setting.patches: one.tokens_per_second for one in measurements.own_rows(loaded)}
    assert found == {(): 90.0, ("faster",): 80.0}
    measurements.save(loaded, [drafted(tokens_per_second=70.0, **own) for own in OTHERS])
    kept = [one.tokens_per_second for one in measurements.own_rows(loaded)]
    assert sorted(kept) == [70.0] * len(OTHERS) + [80.0, 90.0]


def test_predict_says_that_the_profiles_patches_were_not_measured(
    patched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = (*SETS, "target.model=LilaRest/gemma-4-31B-it-NVFP4-turbo")
    assert run(["predict", str(patched), *(word for one in sets for word in ("--set", one))]) == 0
    said = " ".join(capsys.readouterr().out.split())
    lacks = "always, faster, gemma4-fused-norms, humming-launch-params, second"
    assert f"no figure with a draft: the nearest cells were measured without {lacks}" in said


def document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {**result(), "rows": rows, "cells": []}


def test_compare_names_the_patches() -> None:
    before = document([measured("none", 0, 1, 69), measured("mtp", 4, 1, 67, patches=[])])
    after = document([measured("none", 0, 1, 69), measured("mtp", 4, 1, 151, patches=["faster"])])
    for one, patches in ((before, []), (after, ["faster"])):
        one["provenance"]["arms"] = {"mtp/4": {"patches": patches}}
    found = compare(before, after)
    assert [(one.what, one.a, one.b) for one in found.differences] == [("patches", [], ["faster"])]
    said = "\n".join(compare_lines(found, "a", "b", width=None))
    assert "none → faster" in said
    both = document([measured("mtp", 4, 1, 67, patches=[]), measured("mtp", 4, 1, 151, patches=["faster"])])
    same = compare(both, document(list(reversed(both["rows"]))))
    assert [change.patches for change in same.changes] == ["none", "faster"]
    assert not same.slower
    assert "\nfaster" in drawn(both)["text"]  # a column of the table; one k alone has no chart
