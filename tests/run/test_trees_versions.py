"""Which vLLM an interpreter finds: as the launcher finds it, without importing anything of it."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from gemmaspec.core import data
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.runtime import uv
from gemmaspec.run.trees.versions import interpreter_versions


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A real environment of its own, without any package."""
    venv.create(tmp_path / "env", symlinks=True)
    return tmp_path / "env" / "bin" / "python"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with a vllm and a torch that would fail if they were imported."""
    for name, file, version in (("vllm", "_version.py", "0.32.0"), ("torch", "version.py", "2.9.1+cpu")):
        folder = tmp_path / "elsewhere" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise AssertionError('imported')")
        (folder / file).write_text(f"__version__ = '{version}'\n")
    return tmp_path / "elsewhere"


def test_an_interpreter_without_vllm_is_told(python: Path) -> None:
    with pytest.raises(EnvironmentMissing, match="has no vllm"):
        interpreter_versions(python)


def test_a_vllm_that_a_pth_file_brings_in_is_found_as_the_launcher_finds_it(python: Path, elsewhere: Path) -> None:
    (site,) = python.parent.parent.glob("lib/python3*/site-packages")
    (site / "far.pth").write_text(f"{elsewhere}\n")
    assert interpreter_versions(python) == {"vllm": "0.32.0", "torch": "2.9.1+cpu", "transformers": "unknown"}
    located = "import sys; sys.path.insert(0, sys.argv[1]); import launch; print(launch.locate_vllm())"
    launched = subprocess.run(
        [str(python), "-c", located, str(data.LAUNCHER.parent)], capture_output=True, text=True, check=True
    )
    assert launched.stdout.strip() == str(elsewhere / "vllm")


def test_a_vllm_on_the_profiles_pythonpath_is_found_and_one_on_the_shells_is_not(
    python: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interpreter_versions(python, {"PYTHONPATH": str(elsewhere)})["vllm"] == "0.32.0"
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))  # the process engine does not hand it on either
    with pytest.raises(EnvironmentMissing):
        interpreter_versions(python)


def test_no_command_imports_uv_before_something_is_installed() -> None:
    code = (
        "import sys; import gemmaspec.serve.up, gemmaspec.serve.doctor, gemmaspec.cli.app; print('uv' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_the_package_the_uv_of_the_path_is_used_and_without_both_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentMissing) as caught:
        uv.uv_binary()
    assert caught.value.hint == "pip install uv"
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    assert uv.uv_binary() == str(tmp_path / "uv")
