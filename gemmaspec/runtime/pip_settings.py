"""The user's pip settings, given to uv: which indexes, which folders of wheels, which certificates."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_SINGLE: Final = {
    "index-url": "UV_DEFAULT_INDEX",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "proxy": "ALL_PROXY",
}
_LISTS: Final = {
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
_NO_INDEX: Final = "file:///nonexistent"
"""An index of nothing: uv has no variable for --no-index."""


def uv_environment() -> dict[str, str]:
    """This process's environment, in which uv sees the package indexes that pip sees on this machine.

    Settings of uv itself (UV_…, uv.toml) win. Values stay in the environment: an index URL may hold a password,
    and arguments are visible to every user of the machine.
    """
    from gemmaspec.index.wheels import pip_settings

    return translate(pip_settings(), os.environ)


def translate(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with pip's `settings` added under the names uv reads; what is set already is kept."""
    result = dict(environment)
    if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
        settings = {**settings, "index-url": _NO_INDEX, "extra-index-url": ""}
    for name, variable in _SINGLE.items():
        if value := settings.get(name, ""):
            result.setdefault(variable, value.partition(".")[0] if variable == "UV_HTTP_TIMEOUT" else value)
    for name, (variable, separator) in _LISTS.items():
        if words := settings.get(name, "").split():
            result.setdefault(variable, separator.join(words))
    if settings.get("extra-index-url"):
        # pip takes the best version of all indexes; uv by itself stops at the first index that knows the name
        result.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return result
