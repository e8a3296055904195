"""One bounded HTTP exchange with a server."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gemmaspec.engine.server import Server
from gemmaspec.errors import StartFailed, TimedOut

if TYPE_CHECKING:  # slow to import, and a command asks only a server that runs
    import httpx

MAX_BODY: Final = 8 * 1024 * 1024
"""Maximum bytes to read of an answer; a /metrics page of vLLM has about 100 kB."""

_NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no certificate, because a server's address is always http. Loading them would take 20 ms per request."""


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


def exchange(
    server: Server,
    path: str,
    *,
    body: dict[str, Any] | None = None,
    timeout_s: float,
    api_key: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Reply:
    """Send GET, or POST if there is a body, and return the complete reply.

    It uses no proxy and follows no redirect, so that it reaches nothing but `server.base_url`.
    Raises NoAnswer if the connection fails, TimedOut after `timeout_s`, StartFailed above MAX_BODY.
    """
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    deadline = clock() + timeout_s
    try:
        with (
            httpx.Client(verify=_NO_TLS, trust_env=False, follow_redirects=False, timeout=timeout_s) as client,
            client.stream(
                "POST" if body is not None else "GET", server.base_url + path, json=body, headers=headers
            ) as response,
        ):
            return Reply(response.status_code, _read(response, path, deadline=deadline, clock=clock))
    except httpx.TimeoutException:
        raise TimedOut(f"{path} did not answer within {timeout_s:.0f} s") from None
    except httpx.ConnectError:
        raise NoAnswer(f"cannot connect to {server.base_url}{path}") from None
    except httpx.TransportError:
        raise NoAnswer(f"the server closed the connection during {path}") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):
        raise NoAnswer(f"the answer of {path} is invalid") from None


def _read(response: httpx.Response, path: str, *, deadline: float, clock: Callable[[], float]) -> bytes:
    found = bytearray()
    for chunk in response.iter_bytes():
        found += chunk
        if len(found) > MAX_BODY:
            raise StartFailed(f"{path} answers with more than {MAX_BODY} bytes")
        if clock() > deadline:
            raise TimedOut(f"{path} did not finish its answer in time")
    return bytes(found)
