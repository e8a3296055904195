"""Reading one small text from an address that a human gave: http and https alone, bounded in size, time and hops."""

from __future__ import annotations

import time
from typing import Final
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

from gemmaspec.errors import EnvironmentMissing, UsageError
from gemmaspec.index import wheels

LARGEST: Final = 5 * 1024 * 1024  # bytes
DEADLINE_S: Final = 60.0  # for all of it
SILENCE_S: Final = 15.0  # without a byte
MOST_REDIRECTS: Final = 5


def fetch(address: str, *, largest: int = LARGEST, deadline_s: float = DEADLINE_S) -> bytes:
    """Return what is at an address.

    Raise UsageError for another scheme, EnvironmentMissing for what cannot be read, is too large or too slow, or is
    redirected to another scheme, from https to http, or without an end.
    """
    _check(address, address, UsageError)
    ends = time.monotonic() + deadline_s
    here = address
    try:
        with wheels.open_session() as session:
            for _ in range(MOST_REDIRECTS + 1):
                onward, data = _ask(session, here, largest, ends)
                if onward is None:
                    return data
                onward = urljoin(here, onward)
                _check(onward, here, EnvironmentMissing)
                here = onward
    except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
        raise EnvironmentMissing(f"{address} could not be read: {type(error).__name__}: {error}") from None
    raise EnvironmentMissing(f"{address} is redirected more than {MOST_REDIRECTS} times")


def _check(address: str, before: str, error: type[UsageError | EnvironmentMissing]) -> None:
    scheme = urlsplit(address).scheme.lower()
    if scheme not in ("http", "https"):
        raise error(f"{address[:200]}: only http and https are read", hint="download it, and name the file")
    if scheme == "http" and urlsplit(before).scheme.lower() == "https":
        raise error(f"{before} is redirected from https to http, to {address[:200]}")


def _ask(session: requests.Session, address: str, largest: int, ends: float) -> tuple[str | None, bytes]:
    """Return where it is redirected to, or what is there. Nothing compressed is taken: its size would be unknown."""
    headers = {"Accept-Encoding": "identity"}
    with session.get(address, headers=headers, timeout=SILENCE_S, allow_redirects=False, stream=True) as answer:
        if answer.is_redirect:
            return answer.headers["Location"], b""
        if answer.status_code != requests.codes.ok:
            raise EnvironmentMissing(f"{address} is not to be had: {answer.status_code} {answer.reason}")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise EnvironmentMissing(f"{address} is sent compressed, though it was asked for as it is")
        data = b""
        for chunk in answer.iter_content(64 * 1024):
            data += chunk
            if len(data) > largest:
                raise EnvironmentMissing(f"{address} is larger than {largest} bytes, which no patch is")
            if time.monotonic() > ends:
                raise EnvironmentMissing(f"{address} takes too long to send")
    return None, data
