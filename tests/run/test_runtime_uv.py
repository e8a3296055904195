"""What is said when uv fails while the network is away: real uv, and a fake index that misbehaves."""

from __future__ import annotations

import http.server
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.runtime.uv import Uv, failure


class AwayIndex(http.server.BaseHTTPRequestHandler):
    """An index that is busy, resets the connection or cuts its answer, as the first part of the path says."""

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        if kind == "resets":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        self.send_response(503 if kind == "busy" else 200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "1000" if kind == "cuts" else "0")
        self.end_headers()
        self.wfile.write(b"<html>" if kind == "cuts" else b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), AwayIndex) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("kind", ["busy", "resets", "cuts"])
def test_an_index_that_is_away_is_named_with_what_was_kept_and_what_to_do(
    tmp_path: Path, index: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", _Quiet())
    environment = {
        "UV_DEFAULT_INDEX": f"http://user:secret@{index}/{kind}/simple", "UV_HTTP_RETRIES": "0",
        "UV_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path),
    }  # fmt: skip
    uv = Uv(folder=tmp_path, environment=environment, progress=lambda _: None)
    with pytest.raises(EnvironmentMissing) as caught:
        uv.run("pip", "install", "--python", sys.executable, "--target", str(tmp_path / "there"), "toy")
    said, hint = caught.value.message, str(caught.value.hint)
    assert f"{index}/{kind}/simple/toy/" in said.partition("\n")[0]
    assert "kept in uv's cache" in said
    assert hint.startswith("curl -I ")
    assert "run the same command again" in hint
    assert "secret" not in said + hint


class _Quiet:
    """No terminal, so that uv's lines are read."""

    def isatty(self) -> bool:
        return False


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_answer_of_the_index_is_no_network_failure(tmp_path: Path, status: int) -> None:
    lines = [
        "error: Failed to fetch: `https://index/simple/toy/`",
        f"  cause: HTTP status client error ({status} Some) for url (https://index/simple/toy/)",
    ]
    assert "pip config list" in str(failure(("pip", "install"), lines, tmp_path).hint)
