"""An exchange has one deadline, whoever sends one byte at a time, and wherever."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from gemmaspec.core.errors import StartFailed, TimedOut
from gemmaspec.look.sidecar.asking import NoReading, post, read
from gemmaspec.run.engine.http import MAX_BODY, NoAnswer, exchange

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n"


@contextlib.contextmanager
def answering(parts: Sequence[bytes], *, every_s: float = 0.0) -> Iterator[str]:
    """Yield the address of a server that sends these parts, one after another, to every connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                for part in parts:
                    connection.sendall(part)
                    time.sleep(every_s)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def dribbled(content: bytes) -> list[bytes]:
    return [content[place : place + 1] for place in range(len(content))]


@pytest.mark.parametrize(
    "parts",
    [
        dribbled(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 50),
        [b"HTTP/1.1 200 OK\r\n", *[b"X-Slow: yes\r\n"] * 90],
        [HEAD, *dribbled(b"x" * 400)],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"1\r\nx\r\n"] * 100],
        [*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 100],
    ],
    ids=["status and headers by byte", "headers by line", "body by byte", "chunks", "interim answers"],
)
def test_the_deadline_is_of_the_whole_exchange(parts: Sequence[bytes]) -> None:
    with answering(parts, every_s=0.2) as address:
        began = time.monotonic()
        with pytest.raises(TimedOut):
            exchange(address, "/health", timeout_s=1)
        assert 0.9 < time.monotonic() - began < 2
        began = time.monotonic()
        with pytest.raises(NoReading):
            read(address, key=None)
        assert time.monotonic() - began < 3


def test_a_connection_that_breaks_is_told_from_an_answer() -> None:
    with answering([HEAD, b"short"]) as address, pytest.raises(NoAnswer, match="closed the connection during /x"):
        exchange(address, "/x", timeout_s=5)
    with answering([]) as address, pytest.raises(NoAnswer, match="closed the connection during /x"):
        exchange(address, "/x", timeout_s=5)
    with answering([b"garbage\r\n\r\n"]) as address, pytest.raises(NoAnswer):
        exchange(address, "/x", timeout_s=5)
    with pytest.raises(NoAnswer, match="cannot connect"):
        exchange("http://127.0.0.1:1", "/x", timeout_s=5)


def test_a_body_without_end_is_refused_and_one_byte_less_is_read() -> None:
    whole = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * MAX_BODY
    with answering([whole]) as address:
        assert len(exchange(address, "/x", timeout_s=30).body) == MAX_BODY
    with answering([whole, b"x"]) as address, pytest.raises(StartFailed, match="more than"):
        exchange(address, "/x", timeout_s=30)


def test_a_webhook_that_dribbles_is_given_up() -> None:
    with answering(dribbled(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 99), every_s=0.5) as address:
        began = time.monotonic()
        assert "no answer within 10 s" in (post(f"{address}/hook", {}) or "")
        assert time.monotonic() - began < 12


def test_nothing_but_tls_reaches_an_https_address() -> None:
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hear() -> None:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.recv(65536))

        hearing = threading.Thread(target=hear, daemon=True)
        hearing.start()
        with pytest.raises(NoAnswer):
            exchange(f"https://127.0.0.1:{server.getsockname()[1]}", "/health", timeout_s=5, api_key="s3cret")
        hearing.join(5)
    (hello,) = heard
    assert hello[:1] == b"\x16"  # a handshake
    assert b"s3cret" not in hello
