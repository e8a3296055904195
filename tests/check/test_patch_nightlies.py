"""Each released tree under the name of the next release's development build, and every export that git takes."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gemmaspec.check.carry.export import export
from gemmaspec.check.carry.shipped import shipped_profiles
from gemmaspec.cli.app import run
from gemmaspec.core.launcher import launch
from gemmaspec.core.patching.decide import needed_paths
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.patching.plan import launcher_patch
from gemmaspec.run.index.wheels import read_from_wheel
from gemmaspec.run.stack.build import profile_plan
from tests.core.test_patching_releases import RELEASES

pytestmark = pytest.mark.network
PATCHES = load_patches()
COMPILED = {id_: launcher_patch(patch) for id_, patch in PATCHES.items()}
LACKS = {"0.19.1": {"cpu-expand-sampling"}}
"""Patches of functions that came within the next release: under its name they fail closed. 0.19.1 drafts on no CPU."""
NEXT = dict(zip(RELEASES, [*RELEASES[1:], "0.34.0"], strict=True))


@functools.cache
def stock(release: str) -> Mapping[str, bytes]:
    return read_from_wheel("vllm", release, sorted(needed_paths(COMPILED.values())))


@functools.cache
def different_plans() -> list[launch.Plan]:
    """The different plans of the shipped profiles: many profiles take the same patches."""
    plans = [profile_plan(profile, PATCHES) for profile in shipped_profiles()]
    different = {json.dumps(plan["patches"]): plan for plan in plans}
    return [launch.parse_plan(plan) for plan in different.values()]


def written(folder: Path, release: str, version: str) -> Path:
    for path, content in {**stock(release), "vllm/__init__.py": b""}.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    (folder / "vllm/_version.py").write_text(f"__version__ = {version!r}\n")
    return folder


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_named_as_the_next_nightly_fails_no_verify_and_starts_every_profile(
    release: str, tmp_path: Path
) -> None:
    version = f"{NEXT[release]}.dev12+gabc1234"
    lacks = LACKS.get(release, set())
    tree = written(tmp_path, release, version)
    assert run(["patch", "verify", "--tree", str(tree), "--json"]) == (5 if lacks else 0)
    for plan in different_plans():
        results, _ = launch.decide_plan(plan, version, stock(release).get)
        unfit = {one.patch.id for one in results if one.patch.required and one.state not in launch.FITS}
        assert unfit <= lacks


@pytest.mark.parametrize(
    ("id_", "release"),
    [(id_, one) for id_ in PATCHES for one in ("0.19.0", "0.26.0", "0.33.0") if launch.candidates(COMPILED[id_], one)],
)
def test_an_exported_patch_is_taken_by_git_and_by_patch_as_it_is(id_: str, release: str, tmp_path: Path) -> None:
    tree = written(tmp_path, release, release)
    made = export(id_, tree=tree)
    needed = tuple(COMPILED[one] for one in COMPILED[id_].needs)  # it is exported on top of them
    for path, under in patched(needed, release).items():
        (tree / path).write_bytes(under)
    subprocess.run(["git", "apply", "--check", "-"], input=made.diff, cwd=tree, check=True)
    subprocess.run(["patch", "-p1", "-F0", "--batch"], input=made.diff, cwd=tree, check=True)
    changed = patched((*needed, COMPILED[id_]), release)
    assert {path: (tree / path).read_bytes() for path in changed} == changed


def patched(patches: tuple[launch.Patch, ...], release: str) -> Mapping[str, bytes]:
    """The files of a release that patches change, with the patches."""
    return launch.decide_plan(launch.Plan(1, "", "", (), patches, ""), release, stock(release).get)[1]


@pytest.mark.parametrize(("release", "version", "id_"), [
    ("0.26.0", "0.27.0", "mtp-share-embeddings"), ("0.19.0", "0.20.0", "draft-several-kv-groups"),
    ("0.19.0", "0.19.1", "eagle3-gemma4-target"), ("0.32.0", "0.33.0", "kv-spec-uniform-valueerror"),
    ("0.33.0", "0.26.0", "kv-spec-uniform-valueerror"),
])  # fmt: skip
def test_a_file_says_which_release_it_is_of_before_the_version_does(release: str, version: str, id_: str) -> None:
    result = launch.decide_patch(COMPILED[id_], version, stock(release).get)
    assert result.state == "applies"
    assert f"'s file in a {version} tree" in result.files[0].detail
