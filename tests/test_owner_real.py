"""One owner for a stack and for a port, with real vLLM servers: once on each engine."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import real
from tests.real import gemmaspec

A, B = f"owner-a-{real.RUN}", f"owner-b-{real.RUN}"
PORT, TAKEN = real.free_port(), real.free_port()


@pytest.fixture(params=real.ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    yield name
    for stack in (A, B):
        gemmaspec("down", stack)


def test_two_commands_and_one_port_never_cost_a_running_server(engine: str, tmp_path: Path) -> None:
    for name in (A, B):
        (tmp_path / f"{name}.yaml").write_text(
            f"extends: tiny-cpu\nname: {name}\nserve: {{port: {PORT}, served_model_name: model-{name}}}\n"
        )
    first, second = str(tmp_path / f"{A}.yaml"), str(tmp_path / f"{B}.yaml")

    both = [_begin("up", first, "--engine", engine), _begin("up", first, "--engine", engine)]
    ended = [(process.communicate(timeout=1500)[1], process.returncode) for process in both]
    assert [code for _, code in ended] == [0, 0], ended
    assert sum("is starting it; waiting" in err for err, _ in ended) == 1, ended
    before = _report()

    refused = gemmaspec("up", second, "--engine", engine)
    assert refused.code == 4, refused.err
    assert f"port {PORT} belongs to the stack {A}" in refused.err
    assert gemmaspec("status", B).code == 2, "nothing of it was started"

    with socket.create_server(("127.0.0.1", TAKEN)):
        taken = gemmaspec("up", first, "--set", f"serve.port={TAKEN}")
    assert taken.code == 4, taken.err
    assert f"port {TAKEN} on 127.0.0.1 is in use by" in taken.err
    assert _report() == before, "the server that ran before runs on"
    assert gemmaspec("up", first).code == 0
    assert gemmaspec("down", A).code == 0


def _begin(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gemmaspec", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=real.environment())


def _report() -> object:
    done = gemmaspec("status", A, "--json")
    assert done.code == 0, done.err
    return done.json["stacks"][0]["report"]
