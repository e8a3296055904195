"""Why a file could not be read, as a person reads it: no name of an exception class, whatever the library says."""

from __future__ import annotations

import http.client
import re
import socket
import threading
import zipfile

import httpx
import pytest
import requests
import urllib3

from gemmaspec.core.reasons import reason


def raised(url: str) -> requests.RequestException:
    """What requests raises for an address."""
    with pytest.raises(requests.RequestException) as caught:
        requests.get(url, timeout=5)
    return caught.value


def test_a_refused_connection_says_so():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert reason(raised(f"http://127.0.0.1:{port}/x")) == "connection refused"


def test_httpx_says_the_same():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(httpx.HTTPError) as caught:
        httpx.get(f"http://127.0.0.1:{port}/x", trust_env=False)
    assert reason(caught.value) == "connection refused"


def test_a_server_that_hangs_up_says_so():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        error = raised(f"http://127.0.0.1:{server.getsockname()[1]}/x")
    assert reason(error) in ("the connection broke off", "connection reset by peer")


def answered(status: int, text: str) -> requests.HTTPError:
    response = requests.Response()
    response.status_code, response.reason, response.url = status, text, "http://user:secret@index/x"
    return requests.HTTPError("403 Client Error: Forbidden for url: http://user:secret@index/x", response=response)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (requests.ReadTimeout("HTTPConnectionPool(host='x', port=1): Read timed out."), "no answer in time"),
        (answered(403, "Forbidden"), "it answers 403"),
        (requests.ConnectionError(socket.gaierror(-2, "Name or service not known")), "the host name cannot be resolved"),
        (requests.exceptions.SSLError("x"), "the TLS connection failed"),
        (requests.exceptions.ProxyError("x"), "the proxy does not answer"),
        (urllib3.exceptions.ProtocolError("x", http.client.IncompleteRead(b"")), "the connection broke off"),
        (httpx.ConnectTimeout("x"), "no answer in time"),
        (ExceptionGroup("all failed", [OSError("x"), ConnectionRefusedError(111, "x")]), "connection refused"),
        (httpx.UnsupportedProtocol("Request URL is missing an 'http://' protocol."), "the address is invalid"),
        (zipfile.BadZipFile("File is not a zip file"), "File is not a zip file"),
        (ValueError("HTTPSConnectionPool(host='x')"), "the answer is invalid"),
        (ValueError(""), "the answer is invalid"),
        (PermissionError(13, "Permission denied"), "permission denied"),
    ],
)  # fmt: skip
def test_other_errors(error: BaseException, expected: str):
    assert reason(error) == expected
    assert not re.search(r"\w(Error|Exception|Pool)\b", reason(error))


def test_causes_that_refer_to_each_other_end():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert reason(first) == "first"
