"""A signature of what this user's gemmaspec wrote, so that a file from elsewhere is not taken for it."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any, Final

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import UnreadableFile, read_regular, state_dir, write_whole

_KEY: Final = "signing.key"
"""The file of the key in the state folder."""
_BYTES: Final = 64
"""Maximum size of that file: 32 bytes in hexadecimal digits."""


def signature(document: Mapping[str, Any]) -> str:
    """Return the signature of a document; "" where the state folder cannot hold a key."""
    key = _key()
    if key is None:
        key = secrets.token_hex(_BYTES // 2)
        try:
            write_whole(state_dir() / _KEY, key, mode=0o600)
        except EnvironmentMissing:
            return ""
    return _signed(document, key)


def is_own(document: Mapping[str, Any], signed: object) -> bool:
    """Return whether `signed` is the signature that this user's gemmaspec gave a document."""
    key = _key()
    return (
        key is not None
        and isinstance(signed, str)
        and hmac.compare_digest(signed.encode(), _signed(document, key).encode())
    )


def _signed(document: Mapping[str, Any], key: str) -> str:
    return hmac.new(key.encode(), json.dumps(document, sort_keys=True).encode(), "sha256").hexdigest()


def _key() -> str | None:
    with contextlib.suppress(UnreadableFile):
        key = read_regular(state_dir() / _KEY, limit=_BYTES)
        if key is not None and len(key) == _BYTES:
            return key.decode("ascii", errors="replace")
    return None
