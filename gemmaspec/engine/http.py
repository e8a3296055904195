"""One bounded HTTP exchange with a server or a router."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gemmaspec.errors import StartFailed, TimedOut

if TYPE_CHECKING:  # slow to import, and a command asks only a server that runs
    import httpx

MAX_BODY: Final = 8 * 1024 * 1024
"""Maximum bytes to read of an answer; a /metrics page of vLLM has about 100 kB."""

JSON: Final = {"Content-Type": "application/json"}
"""The header of a request whose body is given as bytes."""

_NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no certificate, because a server's address is always http. Loading them would take 20 ms per client."""


class NoAnswer(StartFailed):
    """The connection broke or the server reported a failure, so that it may be dying."""


@dataclass(frozen=True)
class Reply:
    """A status and a complete body."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON. Raises StartFailed if it is invalid."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise StartFailed("the server's answer is not JSON") from None


def settings(base_url: str, *, timeout_s: float, api_key: str | None = None) -> dict[str, Any]:
    """Return the arguments of a client without proxy and redirects, which reaches nothing but `base_url`."""
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    return {
        "base_url": base_url,
        "verify": _NO_TLS,
        "trust_env": False,
        "follow_redirects": False,
        "headers": headers,
        "timeout": timeout_s,
    }


def exchange(
    base_url: str,
    path: str,
    *,
    method: str | None = None,
    query: Mapping[str, str] | None = None,
    body: dict[str, Any] | None = None,
    timeout_s: float,
    api_key: str | None = None,
) -> Reply:
    """Send a request, by default POST if there is a body and else GET, and return the complete reply.

    Raises NoAnswer if the connection fails, TimedOut after `timeout_s`, StartFailed above MAX_BODY.
    """
    import httpx

    method = method or ("POST" if body is not None else "GET")
    deadline = time.monotonic() + timeout_s
    try:
        with (
            httpx.Client(**settings(base_url, timeout_s=timeout_s, api_key=api_key)) as client,
            client.stream(method, path, params=query, json=body) as response,
        ):
            return Reply(response.status_code, _read(response, path, deadline=deadline))
    except httpx.TimeoutException:
        raise TimedOut(f"{path} did not answer within {timeout_s:.0f} s") from None
    except httpx.ConnectError:
        raise NoAnswer(f"cannot connect to {base_url}{path}") from None
    except httpx.TransportError:
        raise NoAnswer(f"the server closed the connection during {path}") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):
        raise NoAnswer(f"the answer of {path} is invalid") from None


def _read(response: httpx.Response, path: str, *, deadline: float) -> bytes:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_BODY:
            raise StartFailed(f"{path} answers with more than {MAX_BODY} bytes")
        if time.monotonic() > deadline:
            raise TimedOut(f"{path} did not finish its answer in time")
    return bytes(body)
