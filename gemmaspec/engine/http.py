"""One bounded HTTP exchange with a server or a router."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from gemmaspec.errors import StartFailed, TimedOut
from gemmaspec.sidecar.exchange import NotConnected, TooLong, exchanged

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
    headers = {"Accept-Encoding": "identity"} | _authorized(api_key)
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

    Raises NoAnswer if the connection fails, TimedOut after `timeout_s` seconds in all, StartFailed above MAX_BODY.
    """
    method = method or ("POST" if body is not None else "GET")
    content = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass") if body is not None else None
    headers = (JSON if body is not None else {}) | _authorized(api_key)
    where = f"{path}?{urlencode(query)}" if query else path
    try:
        status, found = exchanged(
            base_url, where, method=method, body=content, headers=headers, timeout_s=timeout_s, most=MAX_BODY
        )
        return Reply(status, found)
    except TooLong:
        raise StartFailed(f"{path} answers with more than {MAX_BODY} bytes") from None
    except TimeoutError:
        raise TimedOut(f"{path} did not answer within {timeout_s:.0f} s") from None
    except NotConnected:
        raise NoAnswer(f"cannot connect to {base_url}{path}") from None
    except (OSError, http.client.RemoteDisconnected, http.client.IncompleteRead):
        raise NoAnswer(f"the server closed the connection during {path}") from None
    except (http.client.HTTPException, ValueError):
        raise NoAnswer(f"the answer of {path} is invalid") from None


def _authorized(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
