"""Read one small text from an address that a person gave: only http and https, limited in size, time and redirects."""

from __future__ import annotations

import asyncio
import netrc
import os
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urljoin, urlsplit

import httpx

from gemmaspec.core.errors import EnvironmentMissing, UsageError
from gemmaspec.core.reasons import reason
from gemmaspec.run.index import wheels

LARGEST: Final = 5 * 1024 * 1024  # bytes
DEADLINE_S: Final = 60.0  # for everything
SILENCE_S: Final = 15.0  # without any byte
MOST_REDIRECTS: Final = 5


def fetch(address: str, *, largest: int = LARGEST, deadline_s: float = DEADLINE_S) -> bytes:
    """Return the content at an address.

    Raise UsageError for another scheme; EnvironmentMissing if the content is unreadable, too large or too slow, or
    redirected to another scheme, from https to http, or too often.
    """
    _check(address, address, UsageError)
    try:
        return asyncio.run(_fetched(address, largest, deadline_s))
    except TimeoutError:
        raise EnvironmentMissing(f"cannot read {address}: the transfer takes too long") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise EnvironmentMissing(f"cannot read {address}: {reason(error)}") from None


async def _fetched(address: str, largest: int, deadline_s: float) -> bytes:
    """Return the content at an address, over redirects. The timeouts of httpx begin anew with every byte."""
    here = address
    headers = {"Accept-Encoding": "identity"}
    async with (
        asyncio.timeout(deadline_s),
        httpx.AsyncClient(verify=_trusted(), timeout=SILENCE_S, headers=headers, follow_redirects=False) as client,
    ):
        for _ in range(MOST_REDIRECTS + 1):
            onward, data = await _ask(client, here, largest)
            if onward is None:
                return data
            onward = urljoin(here, onward)
            _check(onward, here, EnvironmentMissing)
            here = onward
    raise EnvironmentMissing(f"cannot read {address}: more than {MOST_REDIRECTS} redirects")


def _trusted() -> ssl.SSLContext:
    """Return the certificates that pip trusts: those of its settings or of requests' variables, else httpx's own."""
    variables = (os.environ.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    named = wheels.pip_settings().get("cert") or next(filter(None, variables), None)
    if not named:
        return httpx.create_ssl_context()
    if Path(named).is_dir():
        return ssl.create_default_context(capath=named)
    return ssl.create_default_context(cafile=named)


def _password(address: str) -> httpx.Auth | None:
    """Return the one of ~/.netrc for an address; None if there is none, or the address has one itself."""
    if urlsplit(address).username:
        return None
    try:
        return httpx.NetRCAuth()
    except (OSError, netrc.NetrcParseError):
        return None


def _check(address: str, before: str, error: type[UsageError | EnvironmentMissing]) -> None:
    scheme = urlsplit(address).scheme.lower()
    if scheme not in ("http", "https"):
        raise error(
            f"cannot read {address[:200]}: only http and https are supported", hint="download it, and name the file"
        )
    if scheme == "http" and urlsplit(before).scheme.lower() == "https":
        raise error(f"cannot read {before}: it redirects from https to http, to {address[:200]}")


async def _ask(client: httpx.AsyncClient, address: str, largest: int) -> tuple[str | None, bytes]:
    """Return the redirect or the content. Compressed answers are rejected, because their size is unknown."""
    async with client.stream("GET", address, auth=_password(address)) as answer:
        if answer.has_redirect_location:
            return answer.headers["Location"], b""
        if answer.status_code != httpx.codes.OK:
            raise EnvironmentMissing(f"cannot fetch {address}: {answer.status_code} {answer.reason_phrase}")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise EnvironmentMissing(
                f"cannot read {address}: the server sends it compressed although that was not requested"
            )
        data = bytearray()
        async for chunk in answer.aiter_raw():
            data += chunk
            if len(data) > largest:
                raise EnvironmentMissing(f"cannot read {address}: more than {largest} bytes, too large for a patch")
    return None, bytes(data)
