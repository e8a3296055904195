"""`patch prove --tree` and `patch verify --by-behaviour`: a FAKE vllm, the real runner in this Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gemmaspec.check.proof import environment
from gemmaspec.cli.app import run
from gemmaspec.core.files import state_dir
from tests.check.test_proof import GOOD
from tests.support import vllm_trees as fake
from tests.support.judging import write_judgement
from tests.support.launching import CORE


def fake_environment() -> None:
    """Put a FAKE in the place of the environment for probes, complete and without torch: this Python."""
    folder = state_dir() / "runtimes" / f"prove-{environment._key()}"
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / "complete.json").write_text("{}")


@pytest.fixture
def patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_environment()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # what another run asked is not known here
    place = fake.write_patch(tmp_path / "patches")
    (place / "probe.py").write_text(GOOD)
    write_judgement(place)
    return tmp_path / "patches"


def tree(folder: Path, said: str) -> Path:
    made = fake.write_tree(folder, core=CORE.replace('"stock"', said))
    for name in ("__init__.py", "v1/__init__.py"):
        (made / "vllm" / name).write_text("")
    (made / "torch.py").write_text("raise SystemExit('the neighbours of vllm are not for probes')")
    return made


OPEN, CLOSED = '"st" + "ock"', '"mended"'


@pytest.mark.parametrize(
    ("said", "outcome", "code"), [('"stock"', "proven", 0), (OPEN, "open", 1), (CLOSED, "closed", 0)]
)
def test_a_folder_is_proven_or_its_bug_is_open_or_closed(
    said: str, outcome: str, code: int, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["patch", "prove", "--patches", str(patches), "--tree", str(tree(tmp_path / "tree", said)), "--json"]
    assert run(words) == code
    assert [one["outcome"] for one in json.loads(capsys.readouterr().out)["results"]] == [outcome]


@pytest.mark.parametrize(("said", "state", "code", "detail"), [
    (OPEN, "conflict", 5, "run gemmaspec patch rebase right-value --tree "),
    (CLOSED, "superseded", 0, "add to superseded: {path: vllm/v1/core.py, scope: value, release: "),
])  # fmt: skip
def test_a_conflict_is_asked_for_its_behaviour_once(
    said: str, state: str, code: int, detail: str, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tree(tmp_path / "tree", said)
    words = ["patch", "verify", "--patches", str(patches), "--tree", str(made), "--json"]
    assert run(words) == 5  # the words of the fix alone show nothing
    plain = capsys.readouterr().out
    assert "gemmaspec patch prove right-value --tree DIR" in plain
    assert "a start runs its probe first (half a minute as a rule), as --by-behaviour does" in plain
    asked = []
    for _ in range(2):
        assert run([*words, "--by-behaviour"]) == code
        printed = capsys.readouterr()
        (row,) = json.loads(printed.out)["results"]
        assert (row["state"], detail in row["detail"]) == (state, True)
        asked.append("running the probe of right-value" in printed.err)
    assert asked == [True, False]
    (made / "vllm/other.py").write_text("x = 1")  # the answer was that of exactly these files
    assert run([*words, "--by-behaviour"]) == code
    assert "running the probe" in capsys.readouterr().err


def test_a_probe_that_was_not_judged_closes_nothing_and_a_start_says_so(
    patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (patches / "right-value/judged.json").unlink()
    words = ["patch", "verify", "--patches", str(patches), "--tree", str(tree(tmp_path / "tree", CLOSED)), "--json"]
    assert run(words) == 5
    assert "a start that requires it ends with exit code 5" in capsys.readouterr().out
    assert run([*words, "--by-behaviour"]) == 5
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["state"] == "conflict"
    assert "the probe finds no bug: value() says mended; a start ends" in row["detail"]


def test_the_rule_that_behaviour_suggests_is_one_that_holds(
    patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["patch", "verify", "--patches", str(patches), "--tree", str(tree(tmp_path / "tree", CLOSED)), "--json"]
    assert run([*words, "--by-behaviour"]) == 0
    rule = json.loads(capsys.readouterr().out)["results"][0]["detail"].partition("add to superseded: ")[2]
    file = patches / "right-value" / "patch.yaml"
    file.write_text(file.read_text().replace("superseded:\n", f"superseded:\n  - {rule}\n"))
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["state"] == "superseded"


def test_what_the_probe_cannot_say_stays_a_conflict_with_its_next_command(
    patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (patches / "right-value/probe.py").write_text("def probe():\n    raise RuntimeError('no')")
    made = tree(tmp_path / "tree", CLOSED)
    assert run(["patch", "verify", "--patches", str(patches), "--tree", str(made), "--by-behaviour"]) == 5
    out = capsys.readouterr().out
    assert "the probe failed: RuntimeError: no" in out
    assert "gemmaspec patch prove right-value --tree DIR" in out
