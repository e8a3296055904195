"""The user's pip settings, given to uv: which indexes, which folders of wheels, which certificates."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Final

_LISTS: Final = {
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
_SINGLE: Final = {
    "index-url": "UV_DEFAULT_INDEX",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
    "no-index": "UV_NO_INDEX",
}
_ALIASES: Final = {"default-timeout": "timeout"}


def uv_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which uv sees the package indexes that pip sees on this machine.

    Settings of uv itself (UV_…, uv.toml) win. Values stay in the environment: an index URL may hold a password,
    and arguments are visible to every user of the machine.
    """
    own = dict(os.environ if environment is None else environment)
    return translate(parse_config(_pip_config(own)) | parse_variables(own), own)


def translate(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` with pip's `settings` added under the names uv reads; what is set already is kept."""
    result = dict(environment)
    for name, variable in _SINGLE.items():
        if settings.get(name):
            result.setdefault(variable, settings[name])
    for name, (variable, separator) in _LISTS.items():
        if settings.get(name, "").split():
            result.setdefault(variable, separator.join(settings[name].split()))
    if settings.get("extra-index-url"):
        # pip takes the best version of all indexes; uv by itself stops at the first index that knows the name
        result.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return result


def parse_config(lines: Iterable[str]) -> dict[str, str]:
    """The settings in the output of `pip config list`; those of [install] win over those of [global]."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for line in lines:
        name, _, value = line.partition("=")
        section, _, setting = name.partition(".")
        if section in sections and setting:
            sections[section][_ALIASES.get(setting, setting)] = _unquoted(value)
    return sections["global"] | sections["install"]


def parse_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings in pip's environment variables (PIP_FIND_LINKS, PIP_INDEX_URL …)."""
    found = {}
    for variable, value in environment.items():
        if variable.startswith("PIP_") and value:
            setting = variable.removeprefix("PIP_").lower().replace("_", "-")
            found[_ALIASES.get(setting, setting)] = value
    return found


def _unquoted(value: str) -> str:
    try:
        return str(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        return value


def _pip_config(environment: Mapping[str, str]) -> list[str]:
    """What `pip config list` prints; nothing where there is no pip, since then nobody has configured it."""
    if importlib.util.find_spec("pip"):
        pip = [sys.executable, "-m", "pip"]
    elif found := shutil.which("pip") or shutil.which("pip3"):
        pip = [found]
    else:
        return []
    command = [*pip, "--disable-pip-version-check", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(environment), check=False)
    return done.stdout.splitlines()
