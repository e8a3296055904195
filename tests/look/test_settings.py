"""The folders that `doctor --all` lists: what is state, and what a user would keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmaspec.core.profile.load import load_profile
from gemmaspec.look.settings import settings
from gemmaspec.run.kept.lockfile import lock_file
from gemmaspec.run.kept.measurements import own_file


def test_locks_and_measurements_are_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    listed = {setting.name: setting.value for setting in settings() if setting.kind == "folder"}
    loaded = load_profile("tiny-cpu")
    assert listed["own profiles"] == str(lock_file(loaded).parent) == str(tmp_path / "config/gemmaspec/profiles")
    assert listed["measured"] == str(own_file(loaded).parent) == str(tmp_path / "config/gemmaspec/measured")
    assert listed["state"] == str(tmp_path / "state")
