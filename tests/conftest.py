"""What all tests share: nothing of this machine's own state is read or written."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    for name in ("GEMMASPEC_PROFILES", "VLLM_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """A folder for profiles written by a test."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    return folder
