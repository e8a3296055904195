"""Read one small text from an address that a person gave: only http and https, limited in size, time and redirects."""

from __future__ import annotations

import time
from typing import Final
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

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
        raise EnvironmentMissing(f"cannot read {address}: {reason(error)}") from None
    raise EnvironmentMissing(f"cannot read {address}: more than {MOST_REDIRECTS} redirects")


def _check(address: str, before: str, error: type[UsageError | EnvironmentMissing]) -> None:
    scheme = urlsplit(address).scheme.lower()
    if scheme not in ("http", "https"):
        raise error(
            f"cannot read {address[:200]}: only http and https are supported", hint="download it, and name the file"
        )
    if scheme == "http" and urlsplit(before).scheme.lower() == "https":
        raise error(f"cannot read {before}: it redirects from https to http, to {address[:200]}")


def _ask(session: requests.Session, address: str, largest: int, ends: float) -> tuple[str | None, bytes]:
    """Return the redirect or the content. Compressed answers are rejected, because their size is unknown."""
    headers = {"Accept-Encoding": "identity"}
    with session.get(address, headers=headers, timeout=SILENCE_S, allow_redirects=False, stream=True) as answer:
        if answer.is_redirect:
            return answer.headers["Location"], b""
        if answer.status_code != requests.codes.ok:
            raise EnvironmentMissing(f"cannot fetch {address}: {answer.status_code} {answer.reason}")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise EnvironmentMissing(
                f"cannot read {address}: the server sends it compressed although that was not requested"
            )
        data = b""
        for chunk in answer.iter_content(64 * 1024):
            data += chunk
            if len(data) > largest:
                raise EnvironmentMissing(f"cannot read {address}: more than {largest} bytes, too large for a patch")
            if time.monotonic() > ends:
                raise EnvironmentMissing(f"cannot read {address}: the transfer takes too long")
    return None, data
