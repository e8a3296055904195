"""Reading an address; the server is a fake on this machine, which behaves as badly as it is asked to."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import certifi
import pytest

from gemmaspec.core.errors import EnvironmentMissing, UsageError
from gemmaspec.run.index.address import MOST_REDIRECTS, fetch
from tests.support.vllm_trees import forget_index


class Misbehaving(BaseHTTPRequestHandler):
    """What a path does is its name."""

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].strip("/").replace("-", "_")
        getattr(self, name, self.missing)()

    def missing(self) -> None:
        self.send_error(404)

    def good(self) -> None:
        self.answer(b"a diff")

    def password(self) -> None:
        self.answer(str(self.headers["Authorization"]).encode())

    def answer(self, body: bytes, **headers: str) -> None:
        self.send_response(200)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def huge(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"x" * 65536)
        except OSError:
            self.server.stopped_reading = True  # type: ignore[attr-defined]

    def slow(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(4000):  # for minutes
                self.wfile.write(b"x" * 70_000)
                time.sleep(0.05)
        except OSError:
            pass

    def dribbling(self) -> None:
        """A header each 0.1 s, for minutes: the timeout of a socket never comes."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        try:
            for _ in range(2000):
                self.wfile.write(b"X-Slow: yes\r\n")
                time.sleep(0.1)
        except OSError:
            pass

    def packed(self) -> None:
        self.answer(gzip.compress(b"0" * 1_000_000), Content_Encoding="gzip")

    def cut(self) -> None:
        self.answer(b"half", Content_Length="100")

    def to(self, place: str) -> None:
        self.send_response(302)
        self.send_header("Location", place)
        self.end_headers()

    def once(self) -> None:
        self.to("/good")

    def loop(self) -> None:
        self.to("/loop")

    def to_file(self) -> None:
        self.to("file:///etc/passwd")

    def to_ftp(self) -> None:
        self.to("ftp://127.0.0.1/x")

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Misbehaving) as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{fake.server_port}"
        fake.shutdown()


def test_what_is_there_is_read_over_a_redirect_too(server: str) -> None:
    assert fetch(f"{server}/good") == b"a diff"
    assert fetch(f"{server}/once") == b"a diff"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nothing", ": 404"),
        ("huge", "more than 5242880 bytes"),
        ("packed", "sends it compressed"),
        ("cut", "the connection broke off"),
        ("loop", f"more than {MOST_REDIRECTS} redirects"),
        ("to-file", "file:///etc/passwd: only http and https are supported"),
        ("to-ftp", "ftp://127.0.0.1/x: only http and https are supported"),
    ],
)
def test_a_server_that_misbehaves_is_told_apart(server: str, path: str, said: str) -> None:
    with pytest.raises(EnvironmentMissing) as caught:
        fetch(f"{server}/{path}")
    assert said in caught.value.message


@pytest.mark.parametrize("path", ["slow", "dribbling"])
def test_a_slow_server_is_not_waited_for(server: str, path: str) -> None:
    began = time.monotonic()
    with pytest.raises(EnvironmentMissing, match="takes too long"):
        fetch(f"{server}/{path}", largest=10**9, deadline_s=0.3)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://x/y", "data:text/plain,x", "://x", "HTTPX://x"])
def test_no_other_scheme_is_read(address: str) -> None:
    with pytest.raises(UsageError, match="only http and https are supported"):
        fetch(address)


def test_a_server_that_is_not_there_is_said() -> None:
    with pytest.raises(EnvironmentMissing, match="connection refused"):
        fetch("http://127.0.0.1:9/x")


def test_https_is_not_left_for_http(monkeypatch: pytest.MonkeyPatch) -> None:
    async def onward(*_: object) -> tuple[str, bytes]:
        return "http://127.0.0.1:9/", b""

    monkeypatch.setattr("gemmaspec.run.index.address._ask", onward)
    with pytest.raises(EnvironmentMissing, match="redirects from https to http"):
        fetch("https://127.0.0.1:9/x")


def test_certificates_are_those_of_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine behind a proxy that opens TLS names its certificate to pip, or to requests."""
    named = tmp_path / "own.pem"
    named.write_text("no certificate")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(named))
    forget_index()
    with pytest.raises(EnvironmentMissing, match="cannot read https"):
        fetch("https://127.0.0.1:9/x")
    monkeypatch.setenv("PIP_CERT", certifi.where())
    forget_index()
    with pytest.raises(EnvironmentMissing, match="connection refused"):
        fetch("https://127.0.0.1:9/x")
    forget_index()


@pytest.mark.parametrize(("netrc", "sent"), [("127.0.0.1", "Basic bWU6czNjcmV0"), ("example.org", None)])
def test_a_password_goes_to_its_own_host(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, netrc: str, sent: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text(f"machine {netrc} login me password s3cret\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert fetch(f"{server}/password").decode() == str(sent)
