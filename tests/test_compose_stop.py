"""Stopping with Compose: a `docker` command that fails once, and one that goes on failing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmaspec.engine import compose
from gemmaspec.engine.server import Server
from gemmaspec.errors import GemmaspecError

BUSY = "Error response from daemon: cannot stop container: 17ff: tried to kill container, but did not receive an exit event"


def docker_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, times: int, said: str) -> Path:
    """Put a `docker` first in PATH that fails so often; return the file in which it counts."""
    count = tmp_path / "count"
    script = f'''#!/bin/sh
echo x >> {count}
[ "$(wc -l < {count})" -gt {times} ] || {{ echo "{said}" >&2; exit 1; }}
'''
    (tmp_path / "docker").write_text(script)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return count


def server(tmp_path: Path) -> Server:
    return Server(name="mine", folder=tmp_path, port=1, model="x", speculates=False)


def test_a_container_that_ends_late_is_stopped_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = docker_that_fails(tmp_path, monkeypatch, times=1, said=BUSY)
    compose.stop(server(tmp_path))
    assert count.read_text() == "x\nx\n"


@pytest.mark.parametrize(("said", "tries"), [(BUSY, 2), ("permission denied", 1)])
def test_what_cannot_be_stopped_is_an_error(
    said: str, tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = docker_that_fails(tmp_path, monkeypatch, times=9, said=said)
    with pytest.raises(GemmaspecError, match="could not stop"):
        compose.stop(server(tmp_path))
    assert count.read_text() == "x\n" * tries
