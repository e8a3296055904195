"""Which addresses events may be posted to."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def webhook(value: str) -> str:
    """Return an address that events may be posted to: https, or http of this machine; ValueError for any other."""
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port == 0 or parts.scheme not in ("https", "http"):
        raise ValueError("is not an address like https://example.org/events")
    if parts.username or parts.password:
        raise ValueError("contains a user or a password: export the address as GEMMASPEC_WEBHOOK instead")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ValueError("is http to another machine, which anyone on the network can read; use https")
    return value


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
