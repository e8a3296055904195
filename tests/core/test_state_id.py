"""The id of a state folder: made once, the same for all that ask at one moment, and never guessed."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.state_id import make_state_id, state_id


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_all_that_ask_at_one_moment_get_one_id(state: Path) -> None:
    assert state_id() is None
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: make_state_id(), range(8)))
    assert made == {state_id()}
    assert re.fullmatch("[0-9a-f]{32}", made.pop())
    assert [file.name for file in state.iterdir()] == ["state-id"]


def test_another_folder_has_another_id(state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = make_state_id()
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "other"))
    assert make_state_id() != first


@pytest.mark.parametrize("content", ["", "not an id", "0" * 33])
def test_a_file_that_holds_no_id_is_an_error_and_is_left_alone(state: Path, content: str) -> None:
    state.mkdir()
    (state / "state-id").write_text(content)
    for ask in (state_id, make_state_id):
        with pytest.raises(EnvironmentMissing, match="does not hold the id of a state folder"):
            ask()
    assert (state / "state-id").read_text() == content
