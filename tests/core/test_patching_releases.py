"""The shipped patches on every vLLM release they claim: files of the real wheels, read in part."""

from __future__ import annotations

import ast
import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gemmaspec.core.launcher import attest_sum, launch
from gemmaspec.core.launcher.launch import FileEdit, Read
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.patching.plan import compile_plan
from gemmaspec.run.index.wheels import read_from_wheel

pytestmark = pytest.mark.network

RELEASES = [
    "0.19.0",
    "0.19.1",
    "0.20.0",
    "0.20.1",
    "0.20.2",
    "0.21.0",
    "0.22.0",
    "0.22.1",
    "0.23.0",
    "0.24.0",
    "0.25.0",
    "0.25.1",
    "0.26.0",
    "0.27.0",
    "0.27.1",
    "0.28.0",
    "0.29.0",
    "0.30.0",
    "0.31.0",
    "0.32.0",
    "0.33.0",
]
H1, H2, H3A = "kv-spec-uniform-valueerror", "kv-sharing-uniform-specs", "draft-text-only"
PATCHES = load_patches()
PLAN = launch.parse_plan(compile_plan("test", [H1, H2, H3A], [], [], PATCHES))
EDITS = {(patch.id, variant.name): variant.files for patch in PLAN.patches for variant in patch.variants}
PATHS = sorted({edit.path for files in EDITS.values() for edit in files} | {"vllm/_version.py"})


@functools.cache
def stock(version: str) -> dict[str, bytes]:
    """The files that any patch touches, as the release has them."""
    return read_from_wheel("vllm", version, PATHS)


def reading(version: str) -> Read:
    return stock(version).get


@functools.cache
def patched(version: str) -> dict[str, bytes]:
    """The files that change."""
    return launch.decide_plan(PLAN, version, reading(version))[1]


def reversed_(edit: FileEdit) -> FileEdit:
    return FileEdit(edit.path, tuple(replace(hunk, old=hunk.new, new=hunk.old) for hunk in edit.hunks))


@pytest.mark.parametrize("version", RELEASES)
def test_every_patch_applies_to_the_stock_release(version: str) -> None:
    results, changed = launch.decide_plan(PLAN, version, reading(version))
    assert {result.patch.id: result.state for result in results} == {H1: "applies", H2: "applies", H3A: "applies"}
    assert len(changed) == 3


@pytest.mark.parametrize("version", RELEASES)
def test_the_release_would_be_recognised_by_content_alone(version: str) -> None:
    by_version, _ = launch.decide_plan(PLAN, version, reading(version))
    by_content, _ = launch.decide_plan(PLAN, f"{version}.dev1+gabc1234", reading(version))
    assert [result.variant for result in by_content] == [result.variant for result in by_version]


@pytest.mark.parametrize("version", RELEASES)
def test_applied_is_seen_after_applying_and_compiles_and_can_be_taken_back(version: str) -> None:
    after = stock(version) | patched(version)
    again, changed = launch.decide_plan(PLAN, version, after.get)
    assert {result.state for result in again} == {"applied"}
    assert not changed
    for path, data in patched(version).items():
        compile(data, path, "exec", dont_inherit=True)
    for result in again:
        for edit in EDITS[result.patch.id, result.variant or ""]:
            assert launch.decide_file(reversed_(edit), after[edit.path]).after == stock(version)[edit.path]


@pytest.mark.parametrize("version", ["0.18.1"])
def test_a_release_before_the_first_range_does_not_need_them(version: str) -> None:
    results, changed = launch.decide_plan(PLAN, version, reading(version))
    assert {result.state for result in results} == {"not-needed"}
    assert not changed


@pytest.mark.parametrize("version", RELEASES)
def test_every_release_has_the_functions_in_which_its_processes_attest(version: str) -> None:
    """Each is called: what nobody calls makes a process that has not looked, and no start would be attested."""
    doors = {name: door for name, door in attest_sum.DOORS.items() if name.startswith("vllm.")}
    paths = {name: f"{name.replace('.', '/')}{'/__init__' if name == 'vllm.plugins' else ''}.py" for name in doors}
    callers = ("vllm/engine/arg_utils.py", "vllm/v1/worker/worker_base.py", "vllm/v1/engine/core.py")
    starts = [f"vllm/entrypoints/{name}launcher.py" for name in ("", "launchers/")]
    files = read_from_wheel("vllm", version, [*paths.values(), *callers, *starts, "vllm/v1/executor/abstract.py"])
    for name, (function, _, _) in doors.items():
        tree = ast.parse(files[paths[name]])
        assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in ast.walk(tree)), name
    assert all(b"load_general_plugins()" in files[path] for path in callers)
    assert b".run_busy_loop()" in files["vllm/v1/engine/core.py"]
    assert b'"compile_or_warm_up_model"' in files["vllm/v1/executor/abstract.py"]
    assert any(b"server.serve(" in files.get(path, b"") for path in starts)


# What the patched functions do: taken out of the release and run by themselves


def function(version: str, scope: str, names: dict[str, Any], *, fixed: bool) -> Callable[..., Any]:
    """A function of the release (stock or patched), compiled alone, with fakes of what it names."""
    files = stock(version) | (patched(version) if fixed else {})
    for data in files.values():
        for node in launch.definitions(ast.parse(data), scope):
            node.decorator_list = []
            module = ast.Module([ast.parse("from __future__ import annotations").body[0], node], [])
            namespace = dict(names)
            exec(compile(module, scope, "exec", dont_inherit=True), namespace)
            found: Callable[..., Any] = namespace[node.name]
            return found
    raise AssertionError(f"{version} has no {scope}")


class Spec:
    """A fake of a KV cache spec; the message is vLLM's own (v1/kv_cache_interface.py, every release)."""

    def __init__(self, window: int) -> None:
        self.window = window

    def merge(self, specs: list[Spec]) -> Spec:
        if len({spec.window for spec in specs}) > 1:
            raise ValueError("All attention layers in the same KV cache group must have the same window size.")
        return self


@pytest.mark.parametrize("version", RELEASES)
def test_two_windows_are_not_uniform_any_more_in_place_of_a_crash(version: str) -> None:
    layers = {"target": Spec(1024), "draft": Spec(512)}
    with pytest.raises(ValueError, match="same window size"):
        function(version, "is_kv_cache_spec_uniform", {}, fixed=False)(layers)
    after = function(version, "is_kv_cache_spec_uniform", {}, fixed=True)
    assert after(layers) is False
    assert after({"a": Spec(512), "b": Spec(512)}) is True
    assert after({}) is True


@pytest.mark.parametrize("version", RELEASES)
def test_a_sharing_layer_has_the_spec_of_the_layer_whose_cache_it_reads(version: str) -> None:
    def group(**specs: Any) -> SimpleNamespace:
        return SimpleNamespace(layer_names=["own"], kv_cache_spec=SimpleNamespace(**specs))

    for fixed in (False, True):
        add = function(version, "add_kv_sharing_layers_to_kv_cache_groups", {}, fixed=fixed)
        uniform, plain = group(kv_cache_specs={"own": "spec"}), group()
        runner_only: set[str] = set()
        add({"shared": "own"}, [uniform], runner_only)
        add({"shared": "own"}, [plain])
        assert uniform.layer_names == plain.layer_names == ["own", "shared"]
        assert runner_only == {"shared"}
        assert uniform.kv_cache_spec.kv_cache_specs == ({"own": "spec", "shared": "spec"} if fixed else {"own": "spec"})
        assert vars(plain.kv_cache_spec) == {}


@pytest.mark.parametrize("version", RELEASES)
def test_a_draft_beside_a_multimodal_target_is_told_to_use_text_alone(version: str) -> None:
    name = "_raise_if_multimodal" if launch.contains("<0.21", version) else "_warn_if_multimodal"
    names = {"logger": logging.getLogger("vllm")}
    before = function(version, f"SpecDecodeBaseProposer.{name}", names, fixed=False)
    after = function(version, f"SpecDecodeBaseProposer.{name}", names, fixed=True)
    multimodal, text = SimpleNamespace(supports_mm_inputs=True), SimpleNamespace(supports_mm_inputs=False)
    if name.startswith("_raise"):
        with pytest.raises(NotImplementedError, match="does not support multimodal models yet"):
            before(multimodal)
    else:
        before(multimodal)
        assert multimodal.supports_mm_inputs is True
    after(multimodal)
    after(text)
    assert multimodal.supports_mm_inputs is False
    assert text.supports_mm_inputs is False
