"""Every shipped patch on every release that it claims, and several on one file: files of the real wheels."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from gemmaspec.core.errors import PatchError
from gemmaspec.core.launcher import launch
from gemmaspec.core.launcher.launch import FileEdit
from gemmaspec.core.patching.decide import needed_paths
from gemmaspec.core.patching.patch import load_patch, load_patches
from gemmaspec.core.patching.plan import chain, launcher_patch
from gemmaspec.run.index.wheels import read_from_wheel
from tests.core.test_patching_releases import RELEASES
from tests.support.vllm_trees import write_patch

PATCHES = load_patches()
COMPILED = {id_: launcher_patch(patch) for id_, patch in PATCHES.items()}
PATHS = sorted(needed_paths(COMPILED.values()))


CLAIMS = [
    (id_, one)
    for id_, patch in COMPILED.items()
    for one in RELEASES
    if any(launch.contains(variant.specifier, one) for variant in patch.variants)
]
"""Each shipped patch with each release that it is for."""


@functools.cache
def stock(version: str) -> dict[str, bytes]:
    return read_from_wheel("vllm", version, PATHS)


def together(version: str, ids: tuple[str, ...]) -> tuple[list[str], dict[str, bytes]]:
    """The states of several patches, applied one after the other, and what changes."""
    plan = launch.Plan(1, "", "", (), tuple(COMPILED[id_] for id_ in ids), "")
    results, changed = launch.decide_plan(plan, version, stock(version).get)
    return [result.state for result in results], changed


def needed(id_: str, version: str) -> tuple[str, ...]:
    """The patches that must come before it, where they have a range for this release."""
    return tuple(one.id for one in chain(PATCHES[id_], PATCHES)[:-1] if (one.id, version) in CLAIMS)


def reversed_(edit: FileEdit) -> FileEdit:
    return FileEdit(edit.path, tuple(replace(hunk, old=hunk.new, new=hunk.old) for hunk in edit.hunks))


@pytest.mark.network
@pytest.mark.parametrize(("id_", "version"), CLAIMS)
def test_a_patch_applies_is_then_seen_as_applied_and_can_be_taken_back(id_: str, version: str) -> None:
    before = stock(version) | together(version, needed(id_, version))[1]
    states, changed = together(version, (*needed(id_, version), id_))
    assert set(states) == {"applies"}
    unpublished = launch.decide_patch(COMPILED[id_], f"{version}.dev1+gabc1234", before.get)
    assert (unpublished.state, unpublished.variant) == ("applies", launch.candidates(COMPILED[id_], version)[0].name)
    after = stock(version) | changed
    again = launch.decide_patch(COMPILED[id_], version, after.get)
    assert again.state == "applied"
    (variant,) = launch.candidates(COMPILED[id_], version)
    for edit in variant.files:
        assert launch.decide_file(reversed_(edit), after[edit.path]).after == before[edit.path]


@pytest.mark.network
@pytest.mark.parametrize("version", ["0.19.0", "0.19.1", "0.26.0", "0.33.0"])
def test_all_patches_of_a_release_go_together(version: str) -> None:
    claimed = [id_ for id_, one in CLAIMS if one == version]
    ids = tuple(sorted(claimed, key=lambda id_: len(needed(id_, version))))
    assert set(together(version, ids)[0]) == {"applies"}


@pytest.mark.network
@pytest.mark.parametrize(
    ("version", "path", "ids"),
    [
        ("0.19.0", "vllm/v1/spec_decode/eagle.py", ("draft-text-only", "eagle3-gemma4-target")),
        ("0.26.0", "vllm/v1/spec_decode/llm_base_proposer.py", ("draft-text-only", "mtp-share-embeddings")),
        ("0.19.0", "vllm/model_executor/layers/quantization/modelopt.py", ("nvfp4-awq", "nvfp4-nan-scales")),
        ("0.24.0", "vllm/model_executor/layers/quantization/modelopt.py", ("nvfp4-awq", "nvfp4-nan-scales")),
        ("0.33.0", "vllm/model_executor/layers/quantization/modelopt.py", ("nvfp4-awq", "nvfp4-nan-scales")),
        ("0.32.0", "vllm/v1/attention/backends/triton_attn.py", ("triton-group-geometry", "triton-verify-split-kv")),
        ("0.26.0", "vllm/v1/attention/backends/triton_attn.py", ("triton-group-geometry", "triton-verify-split-kv")),
    ],
)
def test_patches_of_one_file_make_the_same_file_in_any_order(version: str, path: str, ids: tuple[str, ...]) -> None:
    made = set()
    for order in itertools.permutations(ids):
        states, changed = together(version, order)
        assert set(states) == {"applies"}
        made.add(changed[path])
    assert len(made) == 1


@pytest.mark.parametrize("id_", PATCHES)
def test_a_shipped_patch_says_what_goes_wrong_who_knows_and_why_a_range_ends(id_: str) -> None:
    text = PATCHES[id_].text
    assert text.errors or text.symptom  # slow code and fewer accepted tokens print nothing
    assert text.origin
    assert text.last_update
    assert (text.until is None) == (not text.variants[-1].versions.partition(",")[2])
    assert (PATCHES[id_].folder / "probe.py").is_file()


def test_a_range_that_ends_has_to_say_why(tmp_path: Path) -> None:
    folder = write_patch(tmp_path, low="0.19.0,<0.20")
    with pytest.raises(PatchError, match="until: must be set"):
        load_patch(folder)
    folder = write_patch(tmp_path / "more", low="0.19.0,<0.20", more="until: 0.20 closes it\n")
    assert load_patch(folder).text.until == "0.20 closes it"
    folder = write_patch(tmp_path / "open", more="until: never\n")
    with pytest.raises(PatchError, match="last range must be open"):
        load_patch(folder)
