"""An exchange with a server that misbehaves: nothing is followed or unpacked, and what is no answer is refused."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from gemmaspec.run.exchange import NotConnected, TooLong, exchanged, opened

OK = b"HTTP/1.1 200 OK\r\n"


@contextlib.contextmanager
def answering(answer: bytes, *, address: str = "127.0.0.1") -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of a server with one answer for everybody, and what it was sent."""
    heard: list[bytes] = []
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        heard.append(connection.recv(65536))
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        host = f"[{address}]" if ":" in address else address
        yield f"http://{host}:{server.getsockname()[1]}", heard


def asked(address: str, path: str = "/x", *, method: str = "GET", most: int = 1000) -> tuple[int, bytes]:
    return exchanged(address, path, method=method, timeout_s=10, most=most)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", http.client.HTTPException),
        (b"HTTP/1.1 abc OK\r\n\r\n", http.client.HTTPException),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nrubbish\r\n", http.client.HTTPException),
        (OK + b"X: " + b"x" * 200_000 + b"\r\n\r\n", http.client.HTTPException),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nha", http.client.HTTPException),
        (OK + b"Content-Length: 4\r\n\r\nha", http.client.HTTPException),
        (OK + b"X: y\r\n", http.client.HTTPException),
        (b"", http.client.HTTPException),
        (OK + b"\r\n" + b"x" * 1001, TooLong),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 1001, TooLong),
    ],
    ids=[
        *("another protocol", "status", "chunks", "headers of 200 kB"),
        *("half a chunk", "half a body", "half of the headers", "nothing", "too long", "too many chunks"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused_by_its_kind(answer: bytes, error: type[Exception]) -> None:
    with answering(answer) as (address, _), pytest.raises(error):
        asked(address)


def test_as_much_as_was_asked_for_is_read() -> None:
    with answering(OK + b"\r\n" + b"x" * 1000) as (address, _):
        assert asked(address) == (200, b"x" * 1000)


def test_a_redirect_is_an_answer() -> None:
    elsewhere = b"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with answering(elsewhere) as (address, _):
        assert asked(address) == (307, b"")


def test_what_comes_compressed_unasked_stays_compressed() -> None:
    packed = gzip.compress(b"0" * 1_000_000)
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    with answering(head + packed) as (address, heard):
        assert asked(address, most=len(packed)) == (200, packed)
    assert b"Accept-Encoding: identity\r\n" in heard[0]


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with answering(OK + b"Content-Length: 2\r\n\r\nhi") as (address, heard):
        assert asked(address) == (200, b"hi")
    assert heard[0].startswith(b"GET /x HTTP/1.1\r\n")


def test_one_connection_is_for_one_exchange_and_a_post_without_a_body_says_so() -> None:
    with answering(OK + b"Content-Length: 0\r\n\r\n") as (address, heard):
        asked(address, method="POST")
    head = heard[0]
    assert b"Connection: close\r\n" in head
    assert b"Content-Length: 0\r\n" in head
    assert f"Host: {address.removeprefix('http://')}\r\n".encode() in head


def test_a_host_of_ipv6_keeps_its_brackets() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with answering(OK + b"Content-Length: 0\r\n\r\n", address="::1") as (address, heard):
        assert asked(address) == (200, b"")
    assert b"Host: [::1]:" in heard[0]


@pytest.mark.parametrize("key", ["s3cret\r\nX-Evil: 1", "s3cret\u00e9", "s3cret\x00"])
def test_a_key_that_is_no_header_is_not_sent_and_not_shown(key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    with answering(OK + b"\r\n") as (address, heard):
        with pytest.raises(ValueError, match="printable ASCII") as caught:
            exchanged(address, "/x", method="GET", headers=headers, timeout_s=5, most=10)
        assert "s3cret" not in str(caught.value)
        assert not heard


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/x y", http.client.HTTPException),
        ("/x\r\nX-Evil: 1", http.client.HTTPException),
        ("/\u00e9", UnicodeEncodeError),
    ],
)
def test_a_path_that_is_none_is_not_sent(path: str, error: type[Exception]) -> None:
    with answering(OK + b"\r\n") as (address, heard), pytest.raises(error):
        asked(address, path)
    assert not any(b"Evil" in request for request in heard)


def test_where_nothing_listens_nothing_was_sent() -> None:
    with pytest.raises(NotConnected):
        asked("http://127.0.0.1:1")


def test_an_answer_that_comes_before_the_request_has_ended_is_read() -> None:
    """A server that refuses a large body says so and stops reading."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!")
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 20):
                    pass

        threading.Thread(target=refuse, daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert exchanged(address, "/x", method="POST", body=b"x" * 5_000_000, timeout_s=20, most=10) == (413, b"no!")


def test_a_request_that_nobody_reads_ends_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            exchanged(address, "/x", method="POST", body=b"x" * 50_000_000, timeout_s=1, most=10)
        assert time.monotonic() - began < 5


def test_another_thread_ends_an_exchange() -> None:
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"

        def end() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                held[0].shutdown(socket.SHUT_RDWR)

        threading.Thread(target=end, daemon=True).start()
        with pytest.raises(http.client.HTTPException), opened(
            address, "/x", method="GET", timeout_s=60, on_open=held.append
        ) as arriving:  # fmt: skip
            list(arriving.parts())


def test_the_deadline_can_be_moved() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def dribble() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1000)
                connection.sendall(OK + b"\r\n")
                for _ in range(6):
                    time.sleep(0.3)
                    connection.sendall(b"x")

        threading.Thread(target=dribble, daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        with opened(address, "/x", method="GET", timeout_s=1) as arriving:
            read = b""
            for part in arriving.parts():
                read += part
                arriving.wait(1)
        assert read == b"xxxxxx"
