"""Speed patches at a start: applied where they fit exactly and were measured, else left out, and nothing else changes."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core.launcher import launch
from gemmaspec.core.launcher.launch import LaunchError, PatchResult, Plan
from gemmaspec.core.patching.patch import load_patch, load_patches
from gemmaspec.core.patching.plan import compile_plan
from gemmaspec.run.index.wheels import read_from_wheel
from tests.support import placed
from tests.support.launching import HUNK, Place, make_place, patch_of, plan_of
from tests.support.speed_patches import write_speed_patch

OTHER = {
    "scope": "Planner.other",
    "line": 12,
    "old": ["        except AssertionError:"],
    "new": ["        except Exception:"],
}


def fast(name: str = "fast", *hunks: dict[str, Any], **more: Any) -> dict[str, Any]:
    own = {"required": False, "purpose": "speed", "needs": [], "where": [], **more}
    return patch_of(name, *(hunks or (OTHER,)), **own)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path)


def test_a_speed_patch_that_fits_is_applied(place: Place) -> None:
    done = place.launch(plan_of(patch_of(), fast(where=[{"vllm": "0.32.0", "capability": ""}])))
    assert done.code == 0, done.err
    assert done.states == {"one": "applies", "fast": "applies"}
    assert "except Exception" in (place.run_dir / "overlay/vllm/v1/core.py").read_text()
    assert [row["purpose"] for row in done.report["patches"]] == ["defect", "speed"]


LEFT_OUT = [
    (fast(where=[{"vllm": "0.31.0"}]), "it was not measured on vllm 0.32.0, only on 0.31.0"),
    (fast("fast", {**OTHER, "old": ["        except Nothing:"]}), "it does not fit exactly: vllm/v1/core.py:"),
    (fast("fast", {**OTHER, "scope": ""}), "it does not fit exactly: vllm/v1/core.py:"),
    (fast("fast", {**HUNK, "new": ["    return 2"]}), "it does not fit exactly: vllm/v1/core.py:"),
    (fast("fast", {**OTHER, "new": ["  not python"]}), "the patched file would be invalid"),
    (fast(needs=["slow"]), "it needs slow, which is not in"),
]


@pytest.mark.parametrize(("patch", "why"), LEFT_OUT)
def test_one_that_does_not_is_left_out_and_the_server_starts(place: Place, patch: dict[str, Any], why: str) -> None:
    slow = fast("slow", {**OTHER, "old": ["gone"]})
    done = place.launch(plan_of(patch_of(), *([slow] if patch["needs"] else []), patch))
    assert done.code == 0, done.err
    assert done.states["fast"] == "left-out"
    assert why in done.report["patches"][-1]["detail"]
    assert f"WARNING: vllm starts without this patch for speed: {done.report['patches'][-1]['detail']}" in done.err
    alone = (place.run_dir / "overlay/vllm/v1/core.py").read_bytes()
    assert alone == (place.package / "v1/core.py").read_bytes().replace(b'"stock"', b'"patched"  # by us')


def test_a_patch_of_a_defect_still_stops_the_start(place: Place) -> None:
    done = place.launch(plan_of(patch_of("one", {**HUNK, "old": ["gone"]}), fast()))
    assert done.code == 5
    assert "one does not fit vllm 0.32.0: vllm was not started" in done.err


def test_all_files_of_a_speed_patch_or_none(place: Place) -> None:
    files = [
        {"path": "vllm/v1/core.py", "hunks": [OTHER]},
        {"path": "vllm/v1/plain.py", "hunks": [{"scope": "", "line": 1, "old": ["A = 2"], "new": ["A = 3"]}]},
    ]
    done = place.launch(plan_of(fast(files=files)))
    assert done.states == {"fast": "left-out"}
    assert done.report["overlay"] is None


def test_a_nightly_was_not_measured(tmp_path: Path) -> None:
    place = make_place(tmp_path, version="0.33.1.dev45+gabc")
    done = place.launch(plan_of(fast(where=[{"vllm": "0.32.0"}])))
    detail = "vllm 0.33.1.dev45+gabc is not a published release, and it was measured on 0.32.0 only"
    assert done.report["patches"][0]["detail"] == detail
    asked_for = place.launch(plan_of(fast()))
    assert asked_for.states == {"fast": "applies"}


@pytest.mark.parametrize(
    ("says", "state"),
    [
        ("9.0", "applies"),
        ("12.1", "it was not measured on GPUs of compute capability 12.1"),
        ("9.0\n12.1", "it was not measured on GPUs of compute capability 12.1"),
        ("[N/A]", "the GPU's compute capability is not known: nvidia-smi does not tell it"),
    ],
)
def test_the_gpu_decides_where_the_profile_leaves_it_open(place: Place, says: str, state: str) -> None:
    fake = place.site.parent / "fake-bin" / "nvidia-smi"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho '{says}'\n")
    fake.chmod(0o755)
    plan = plan_of(fast(where=[{"vllm": "0.32.0", "capability": "9.0"}]))
    done = place.launch(plan, env={"PATH": f"{fake.parent}:{os.environ['PATH']}"})
    row = done.report["patches"][0]
    assert state in (row["state"], row["detail"])


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (plan_of(fast(required=True)), "a speed patch cannot be required"),
        (plan_of(fast(), patch_of()), "patches for speed must come after those of defects"),
        (plan_of(fast(purpose="fun")), "purpose 'fun' is not defect or speed"),
    ],
)
def test_a_plan_in_which_a_start_would_depend_on_speed_is_refused(place: Place, plan: dict[str, Any], why: str) -> None:
    done = place.launch(plan)
    assert (done.code, done.report) == (2, {})
    assert why in done.err


H1 = "kv-spec-uniform-valueerror"
UTILS, TRITON = "vllm/v1/core/kv_cache_utils.py", "vllm/v1/attention/backends/triton_attn.py"
SHARED = f"""\
--- a/{UTILS}
+++ b/{UTILS}
@@ -796 +796,2 @@
         _ = kv_cache_spec_values[0].merge(kv_cache_spec_values)
+        _ = kv_cache_spec
--- a/{TRITON}
+++ b/{TRITON}
@@ -112,2 +112,2 @@
-        self.num_heads_kv = model_config.get_num_kv_heads(vllm_config.parallel_config)
-        self.headdim = model_config.get_head_size()
+        self.num_heads_kv = kv_cache_spec.num_kv_heads
+        self.headdim = kv_cache_spec.head_size
"""


@functools.cache
def released() -> dict[str, bytes]:
    return read_from_wheel("vllm", "0.32.0", [UTILS, TRITON])


@functools.cache
def real_plan(*, speed: bool = True) -> Plan:
    """A shipped patch of a defect, and a speed patch that changes the next line and another file."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        text = write_speed_patch(
            Path(folder),
            diff=SHARED,
            path=UTILS,
            scope=f"is_kv_cache_spec_uniform], {TRITON}: [TritonAttentionMetadataBuilder.__init__",
        )
        placed.record(text, {path: data.decode() for path, data in released().items()})
        patches = {**load_patches(), "faster": load_patch(text)}
    return launch.parse_plan(compile_plan("test", [H1], [], [], patches, speed={"faster": ()} if speed else {}))


def decided(plan: Plan, *, edited: str = "") -> tuple[dict[str, PatchResult], dict[str, bytes]]:
    files = {path: data.replace(edited.encode(), b"edited()") if edited else data for path, data in released().items()}
    results, changed = launch.decide_plan(plan, "0.32.0", files.get)
    return {one.patch.id: one for one in results}, changed


@pytest.mark.network
def test_real_files_take_both_patches_of_one_function() -> None:
    results, changed = decided(real_plan())
    assert {name: one.state for name, one in results.items()} == {H1: "applies", "faster": "applies"}
    assert b"(AssertionError, ValueError)" in changed[UTILS]
    assert b"_ = kv_cache_spec\n" in changed[UTILS]
    assert b"kv_cache_spec.num_kv_heads" in changed[TRITON]


@pytest.mark.network
def test_left_out_of_real_files_it_leaves_the_other_patch_whole() -> None:
    results, changed = decided(real_plan(), edited="self.headdim = model_config.get_head_size()")
    assert results["faster"].state == "left-out"
    assert f"{TRITON}:" in results["faster"].detail
    assert results[H1].state == "applies"
    assert changed == decided(real_plan(speed=False))[1]


@pytest.mark.network
def test_where_the_defect_cannot_be_corrected_nothing_starts_in_real_files() -> None:
    plan = real_plan()
    results, _ = decided(plan, edited="    except AssertionError:\n        return False\n    return True")
    assert results[H1].state == "conflict"
    with pytest.raises(LaunchError, match=f"{H1} does not fit"):
        launch.stop_on_conflict(plan, list(results.values()), "0.32.0")


SHIPPED = load_patches()
SPEED = [name for name, patch in SHIPPED.items() if patch.is_speed]
BUILDER = "self.block_size = kv_cache_spec.block_size"


@pytest.mark.network
@pytest.mark.skipif(not SPEED, reason="no patch for speed is shipped")
@pytest.mark.parametrize("vllm", ["0.32.0", "0.33.0"])
def test_shipped_speed_patches_are_left_out_of_drifted_code_and_the_rest_is_whole(vllm: str) -> None:
    named = sorted(SPEED, key=lambda name: (bool(SHIPPED[name].text.needs), name))
    plan = launch.parse_plan(compile_plan("test", [H1], [], [], SHIPPED, speed=dict.fromkeys(named, ())))
    paths = {edit.path for patch in plan.patches for one in launch.candidates(patch, vllm) for edit in one.files}
    files = read_from_wheel("vllm", vllm, [*paths, UTILS, TRITON])
    results, changed = launch.decide_plan(plan, vllm, files.get)
    assert {one.state for one in results} <= {"applies", "not-needed", "superseded"}
    drifted = {**files, TRITON: files[TRITON].replace(BUILDER.encode(), BUILDER.replace("= ", "= 1 * ").encode())}
    assert drifted[TRITON] != files[TRITON]
    results, changed = launch.decide_plan(plan, vllm, drifted.get)
    left_out = {one.patch.id: one.detail for one in results if one.state == "left-out"}
    assert "triton-group-geometry" in left_out
    assert f"it does not fit exactly: {TRITON}:" in left_out["triton-group-geometry"]
    assert "drifted: TritonAttentionMetadataBuilder.__init__ changed since" in left_out["triton-group-geometry"]
    alone = launch.parse_plan(compile_plan("test", [H1], [], [], SHIPPED))
    (defect,), corrected = launch.decide_plan(alone, vllm, drifted.get)
    assert results[0].state == defect.state == "applies"
    assert corrected.items() <= changed.items()
    assert TRITON not in changed
