"""Compiling a plan: reproducible, complete, and exactly what the launcher takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gemmaspec.core.errors import PatchError
from gemmaspec.core.launcher import launch
from gemmaspec.core.launcher.launch import Requirement
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.patching.plan import compile_plan, plan_text

PATCHES = load_patches()
NAMES = ["kv-spec-uniform-valueerror", "kv-sharing-uniform-specs"]
NEEDS = [Requirement("transformers", ">=5.5.0,<5.15", ">=0")]


def test_the_launcher_takes_the_plan_that_is_written(tmp_path: Path) -> None:
    plan = compile_plan("spark", NAMES, ["draft-text-only"], NEEDS, PATCHES)
    (tmp_path / "plan.json").write_text(plan_text(plan), encoding="utf-8")
    loaded = launch.load_plan(tmp_path / "plan.json")
    assert [patch.id for patch in loaded.patches] == [*NAMES, "draft-text-only"]
    assert [patch.required for patch in loaded.patches] == [True, True, False]
    assert loaded.requires == tuple(NEEDS)
    shipped = [variant.files for patch in loaded.patches for variant in patch.variants]
    assert shipped == [variant.files for name in plan_order(loaded) for variant in PATCHES[name].variants]


def plan_order(plan: launch.Plan) -> list[str]:
    return [patch.id for patch in plan.patches]


def test_the_same_input_gives_the_same_text_byte_for_byte() -> None:
    texts = {plan_text(compile_plan("spark", NAMES, [], NEEDS, load_patches())) for _ in range(3)}
    assert len(texts) == 1
    (text,) = texts
    assert text.endswith("}\n")
    assert plan_text(json.loads(text)) == text


def test_the_digest_is_over_everything() -> None:
    base = compile_plan("spark", NAMES, [], NEEDS, PATCHES)["sha256"]
    others = {
        compile_plan("other", NAMES, [], NEEDS, PATCHES)["sha256"],
        compile_plan("spark", NAMES[::-1], [], NEEDS, PATCHES)["sha256"],
        compile_plan("spark", NAMES[:1], NAMES[1:], NEEDS, PATCHES)["sha256"],
        compile_plan("spark", NAMES, [], [], PATCHES)["sha256"],
    }
    assert len(others | {base}) == 5


def test_an_unknown_patch_names_the_nearest() -> None:
    with pytest.raises(PatchError, match="unknown patch kv-sharing; did you mean kv-sharing-uniform-specs"):
        compile_plan("spark", ["kv-sharing"], [], [], PATCHES)
    with pytest.raises(PatchError, match="unknown patch zzz; the known patches are composite-full-graphs, cpu-expand-"):
        compile_plan("spark", [], ["zzz"], [], PATCHES)


def test_a_patch_is_required_or_optional_not_both() -> None:
    with pytest.raises(PatchError, match="listed twice"):
        compile_plan("spark", NAMES, NAMES[:1], [], PATCHES)


def test_what_the_launcher_would_refuse_is_refused_here() -> None:
    variant = PATCHES[NAMES[0]].variants[0]
    broken = replace(PATCHES[NAMES[0]], variants=(replace(variant, specifier="latest"),))
    with pytest.raises(PatchError, match="the launcher would reject"):
        compile_plan("spark", NAMES[:1], [], [], {NAMES[0]: broken})
