"""Why the network or a file failed, in words for a person: libraries put names of classes and addresses into theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_KINDS: Final[tuple[tuple[frozenset[str], str], ...]] = (
    (frozenset({"ProxyError"}), "the proxy does not answer"),
    (frozenset({"ConnectionRefusedError"}), "connection refused"),
    (frozenset({"gaierror", "NameResolutionError"}), "the host name cannot be resolved"),
    (frozenset({"SSLCertVerificationError"}), "the server's certificate is not trusted"),
    (frozenset({"SSLError"}), "the TLS connection failed"),
    (frozenset({"TimeoutError", "Timeout", "TimeoutException"}), "no answer in time"),
    (frozenset({"ContentDecodingError", "DecodeError", "DecodingError"}), "the answer cannot be decompressed"),
    (frozenset({"InvalidURL", "InvalidSchema", "MissingSchema", "UnsupportedProtocol"}), "the address is invalid"),
)
"""Errors that are clear by their class, or a base of it, of requests, urllib3, httpx and Python; the first one counts.

They are compared by name, so that this module imports none of these libraries.
"""

_BROKEN: Final = frozenset({"ChunkedEncodingError", "ProtocolError", "ConnectionError", "NetworkError"})
_INTERNAL: Final = re.compile(r"\w(?:Error|Exception|Pool|Read)\b|object at 0x|<")


def reason(error: BaseException) -> str:
    """Return why something could not be read, in a few words without the name of an exception class."""
    chain = list(_chain(error))
    names: set[str] = set()
    for link in chain:
        names |= {kind.__name__ for kind in type(link).__mro__}
    for kinds, text in _KINDS:
        if kinds & names:
            return text
    for link in chain:
        status = getattr(getattr(link, "response", None), "status_code", None)
        if isinstance(status, int):
            return f"it answers {status}"
        if isinstance(link, OSError) and link.strerror:
            return link.strerror[:1].lower() + link.strerror[1:]
    if names & _BROKEN:
        return "the connection broke off"
    text = str(error)
    if not text or _INTERNAL.search(text):
        return "the answer is invalid"
    return text[:200]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it; requests and urllib3 keep causes in their arguments too, anyio in groups."""
    todo, seen = [error], set[int]()
    while todo:
        link = todo.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        several = link.exceptions if isinstance(link, BaseExceptionGroup) else ()
        causes = (*several, *link.args, getattr(link, "reason", None), link.__cause__, link.__context__)
        todo += [cause for cause in causes if isinstance(cause, BaseException)]
