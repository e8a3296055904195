"""Servers that somebody else has started, by their address."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from gemmaspec.engine.server import Server
from gemmaspec.errors import UsageError


def server_at(url: str, *, option: str, name: str) -> Server:
    """Return the server at an address; `name` stands for it in messages. Raises UsageError that names the option."""
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError:
        raise UsageError(f"{option} {url!r} is not an address like http://127.0.0.1:8000") from None
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/", "/v1", "/v1/") or parts.username:
        raise UsageError(f"{option} {url!r} is not an address like http://127.0.0.1:8000")
    return Server(name=name, folder=Path(os.devnull), port=port, bind=parts.hostname, model="", speculates=False)
