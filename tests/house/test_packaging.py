"""The wheel: what is in it, and that it works outside the repository in an empty environment."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gemmaspec.core import data
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import load_profile
from gemmaspec.look.explain import PAGES
from gemmaspec.run.runtime.pip_settings import uv_environment

ROOT = Path(__file__).parent.parent.parent
DATA = ("profiles", "patches", "templates", "compose", "measurements", "prompts", "models")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built with uv from this checkout."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "uv", "build", "--wheel", "--out-dir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
        env=uv_environment(),
    )
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_tracked_file_of_package_and_data_and_nothing_else(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "gemmaspec", *DATA, *(f"docs/{page}" for page in PAGES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    tracked = {
        name if name.startswith("gemmaspec/") else f"gemmaspec/_data/{name}" for name in listed.stdout.splitlines()
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == tracked


@pytest.mark.network
def test_the_wheel_renders_every_profile_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    uv = [sys.executable, "-m", "uv"]
    environment = uv_environment()
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(tmp_path / "venv")], check=True, env=environment)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([*uv, "pip", "install", "-q", "--python", str(python), str(wheel)], check=True, env=environment)
    for name in [name for name in profile_names([data.PROFILES]) if load_profile(name).profile.nodes == 1]:
        command = [str(tmp_path / "venv" / "bin" / "gemmaspec"), "render", name, "--out", f"out/{name}"]
        subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
        rendered = (tmp_path / "out" / name / "compose.yaml").read_text()
        assert rendered == (ROOT / "tests" / "golden" / name / "compose.yaml").read_text()
