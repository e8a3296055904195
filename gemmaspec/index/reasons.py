"""Why a file could not be read, in words for a person: libraries put names of classes and addresses into theirs."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import requests
import urllib3.exceptions as pool

_KINDS: Final[tuple[tuple[tuple[type[BaseException], ...], str], ...]] = (
    ((requests.exceptions.ProxyError, pool.ProxyError), "the proxy does not answer"),
    ((ConnectionRefusedError,), "connection refused"),
    ((socket.gaierror, pool.NameResolutionError), "the host name cannot be resolved"),
    ((ssl.SSLCertVerificationError,), "the server's certificate is not trusted"),
    ((ssl.SSLError, requests.exceptions.SSLError, pool.SSLError), "the TLS connection failed"),
    ((TimeoutError, requests.Timeout, pool.TimeoutError), "no answer in time"),
    ((requests.exceptions.ContentDecodingError, pool.DecodeError), "the answer cannot be decompressed"),
)
"""Errors that are clear by their class alone; the first one in the chain of causes counts."""

_BROKEN: Final = (requests.exceptions.ChunkedEncodingError, pool.ProtocolError, requests.ConnectionError)
_INTERNAL: Final = re.compile(r"\w(?:Error|Exception|Pool|Read)\b|object at 0x|<")


def reason(error: BaseException) -> str:
    """Return why reading failed, in a few words without the name of any exception class."""
    chain = list(_chain(error))
    for kinds, text in _KINDS:
        if any(isinstance(one, kinds) for one in chain):
            return text
    for one in chain:
        if isinstance(one, requests.HTTPError) and one.response is not None:
            return f"{one.response.status_code} {one.response.reason}"
        if isinstance(one, OSError) and one.strerror:
            return one.strerror[:1].lower() + one.strerror[1:]
    if any(isinstance(one, _BROKEN) for one in chain):
        return "the connection broke off"
    text = str(error)
    return "the answer is invalid" if not text or _INTERNAL.search(text) else text[:200]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it; requests and urllib3 keep causes in their arguments too."""
    todo, seen = [error], set[int]()
    while todo:
        one = todo.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        causes = (*one.args, getattr(one, "reason", None), one.__cause__, one.__context__)
        todo += [cause for cause in causes if isinstance(cause, BaseException)]
