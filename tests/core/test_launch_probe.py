"""What the probes of a pod find out, against a fake of vLLM's server, each as the program that a container runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core import data
from gemmaspec.core.launcher import probe
from tests.support.fake_server import FakeServer, fake_server


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


def ask(server: FakeServer, state: Path, proof: str, *more: str, deadline: float = 60) -> int:
    port = server.server_address[1]
    words = [proof, f"--port={port}", "--model=tiny", f"--state={state}", f"--deadline={deadline}", *more]
    return probe.main(words)


def moved(server: FakeServer, tokens: int) -> None:
    server.metrics = f'vllm:generation_tokens_total{{engine="0"}} {tokens}.0\nvllm:request_success_total 3\n'.encode()


def asked(server: FakeServer) -> list[Any]:
    return [body for path, _, body in server.requests if path == "/v1/chat/completions"]


def aged(state: Path, seconds: float) -> None:
    seen = json.loads(state.read_text())
    state.write_text(json.dumps({**seen, "at": seen["at"] - seconds}))


def test_it_runs_alone_in_an_isolated_python(server: FakeServer, tmp_path: Path) -> None:
    copy = tmp_path / "probe.py"
    copy.write_text(data.PROBE.read_text())
    port = server.server_address[1]
    words = [f"--port={port}", "--model=tiny", f"--state={tmp_path / 's'}", "--deadline=60", "--speculates"]
    done = subprocess.run([sys.executable, "-I", str(copy), "drafted", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_drafted_asks_a_whole_question_with_the_key(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "k")
    assert ask(server, tmp_path / "s", "drafted", "--speculates") == 0
    (body,) = asked(server)
    assert body["max_tokens"] == probe.MAX_TOKENS
    assert {headers.get("Authorization") for _, headers, _ in server.requests} == {"Bearer k"}


def test_a_server_that_answers_and_does_not_draft_has_not_started(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.drafts_per_answer = 0
    assert ask(server, tmp_path / "s", "drafted", "--speculates") == 1
    assert "does not draft" in capsys.readouterr().out
    assert not (tmp_path / "s").exists()
    assert ask(server, tmp_path / "s", "drafted") == 0


@pytest.mark.parametrize(
    "change",
    [
        {"status": 500},
        {"body": b"{}"},
        {"body": b"[]"},
        {"body": b"\xff"},
        {"body": b'{"choices": [], "usage": {"completion_tokens": 0}}'},
        {"hang_up": True},
        {"metrics": b"vllm:spec_decode_num_draft_tokens_total{a} x\n"},
    ],
)
def test_any_other_answer_is_a_failure_in_one_line(
    server: FakeServer, tmp_path: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in change.items():
        setattr(server, name, value)
    assert ask(server, tmp_path / "s", "drafted", "--speculates") == 1
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_server_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    with fake_server() as gone:
        pass
    assert ask(gone, tmp_path / "s", "answers") == 1


def test_an_engine_that_moves_is_not_asked(server: FakeServer, tmp_path: Path) -> None:
    state = tmp_path / "s"
    for tokens in (1, 2, 3):
        moved(server, tokens)
        assert ask(server, state, "answers") == 0
        aged(state, 1000)
    assert len(asked(server)) == 1, "the first look has nothing to compare with"


def test_one_that_stands_still_is_asked_once_a_minute(server: FakeServer, tmp_path: Path) -> None:
    state = tmp_path / "s"
    moved(server, 1)
    assert ask(server, state, "answers") == 0
    assert ask(server, state, "answers") == 0
    assert len(asked(server)) == 1
    aged(state, 61)
    assert ask(server, state, "answers") == 0
    assert [body["max_tokens"] for body in asked(server)] == [1, 1]
    assert ask(server, state, "answers") == 0
    assert len(asked(server)) == 2


def test_one_that_hangs_fails_by_its_deadline_and_each_time_again(server: FakeServer, tmp_path: Path) -> None:
    state = tmp_path / "s"
    moved(server, 1)
    assert ask(server, state, "answers") == 0
    aged(state, 61)
    server.seconds_per_byte = 0.5
    for _ in range(2):
        began = time.monotonic()
        assert ask(server, state, "answers", deadline=0.2) == 1
        assert time.monotonic() - began < 50


def test_a_metric_whose_name_begins_alike_neither_moves_nor_counts() -> None:
    """It grows beside an engine that hangs, or that drafts nothing."""
    alike = [f'{name}_by_router{{a="b"}} {value}' for name in (*probe.MOVES, probe.DRAFTED) for value in (1, 2)]
    assert probe.moves("\n".join(alike)) == ""
    assert probe.total("\n".join(alike), probe.DRAFTED) == 0
    own = [f'{probe.MOVES[0]}{{engine="0"}} 7', f"{probe.MOVES[3]} 1"]
    assert probe.moves("\n".join([*alike, *own])) == "\n".join(own)


@pytest.mark.parametrize("content", ["", "[]", '{"at": "x"}', '{"at": 9e99, "moves": "m"}', "{" * 100_000])
def test_a_damaged_state_file_counts_as_none(server: FakeServer, tmp_path: Path, content: str) -> None:
    (tmp_path / "s").write_text(content)
    moved(server, 1)
    assert ask(server, tmp_path / "s", "answers") == 0
    assert json.loads((tmp_path / "s").read_text())["moves"]


def attest(run: Path, state: str, text: str) -> None:
    """The verdict on what the processes of a patched server have said."""
    (run / "attest").mkdir(exist_ok=True)
    (run / "attest/targets.json").write_text("{}")
    (run / "attested.json").write_text(json.dumps({"state": state, "text": text}))


@pytest.mark.parametrize("proof", ["drafted", "answers"])
@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (("different", "NOT ATTESTED: vllm serve (pid 7): vllm.a.f: it is now g"), "vllm.a.f: it is now g"),
        (("not attested", "NOT ATTESTED: vllm.left: imported by no process"), "vllm.left: imported by no process"),
        (None, "no process has said anything"),
    ],
)
def test_a_server_that_is_not_attested_fails_every_probe(
    server: FakeServer, tmp_path: Path, proof: str, verdict: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    attest(tmp_path, *(verdict or ("", "")))
    if verdict is None:
        (tmp_path / "attested.json").write_text("{")
    assert ask(server, tmp_path / "s", proof) == 1
    assert says in capsys.readouterr().out


def test_a_server_that_is_attested_passes(server: FakeServer, tmp_path: Path) -> None:
    attest(tmp_path, "attested", "attested: 1 function in 1 process")
    assert ask(server, tmp_path / "s", "drafted") == 0
    assert ask(server, tmp_path / "s", "answers") == 0
