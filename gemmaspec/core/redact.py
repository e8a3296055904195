"""Redact secrets in everything that is printed or stored."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

SECRETS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY")
"""Variables whose values are always redacted."""

_USERINFO: Final = re.compile(r"(?<=://)[^/\s\"'<>]*:[^/\s\"'<>]+(?=@)")
"""user:password of a URL, as in variables for proxies and indexes; up to the last @ of the authority."""
_ADDRESSES: Final = re.compile(r"_PROXY$|INDEX|ENDPOINT|DOCKER_HOST", re.IGNORECASE)
_SHORTEST: Final = 6
"""Shorter values are not redacted, because they may be ordinary words."""


def redact(text: str) -> str:
    """Return a text without this user's secrets, and without user and password in addresses."""
    for secret in _secrets():
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, "***")
    return _USERINFO.sub("***", text)


def _secrets() -> Iterator[str]:
    yield from (os.environ.get(name, "").strip() for name in SECRETS)
    yield _stored_token()
    for name, value in os.environ.items():
        if _ADDRESSES.search(name):
            yield from _passwords(value)


@functools.lru_cache(maxsize=64)
def _passwords(addresses: str) -> tuple[str, ...]:
    """Return the passwords in the addresses of one variable, as written and decoded."""
    forms = []
    for userinfo in _USERINFO.findall(addresses):
        password = userinfo.partition(":")[2]
        forms += [password, unquote(password)]
    return tuple(forms)


@functools.cache
def _stored_token() -> str:
    """Return the token that `hf auth login` stored."""
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    home = os.environ.get("HF_HOME") or f"{caches}/huggingface"
    file = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(4096).strip()
    except OSError:
        return ""
