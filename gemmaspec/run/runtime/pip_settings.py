"""Pass the user's pip settings to uv: indexes, folders of wheels, certificates."""

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
"""An empty index, because uv has no variable for --no-index."""


def uv_environment() -> dict[str, str]:
    """Return this process's environment, in which uv uses the same package indexes as pip.

    uv's own settings (UV_…, uv.toml) win. Values stay in the environment, because an index URL may contain a password
    and every user of the machine can see arguments.
    """
    from gemmaspec.run.index.wheels import pip_settings

    return translate(pip_settings(), os.environ)


def translate(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with pip's `settings` under uv's names; existing values are kept."""
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
        # pip uses the best version of all indexes; by default uv stops at the first index that has the name
        result.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return result
