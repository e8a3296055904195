"""Files in the folder of what is taken over: the one of `vllm serve --config`, and the .env of a Compose file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gemmaspec.core.files import UnreadableFile, read_regular
from gemmaspec.core.profile.fields import secret_name
from gemmaspec.core.profile.takeover_trust import has_credentials

_MOST: Final = 2**20
_ROW: Final = re.compile(r"(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*=[ \t]*(.*)")


def reader(folder: Path) -> Callable[[str], bytes | None]:
    """Return what reads a file by its path, which may begin in `folder`; it returns None where it cannot."""

    def read(path: str) -> bytes | None:
        try:
            return read_regular(folder / Path(path).expanduser(), limit=_MOST, follow=True)
        except (UnreadableFile, OSError, RuntimeError, ValueError):
            return None

    return read


def compose_variables(folder: Path) -> dict[str, str]:
    """Return what Compose fills into a file of this folder: its .env, and this environment, which goes before it.

    Variables that may be secrets are left out, by their names and by their values.
    """
    written = reader(folder)(".env") or b""
    found: dict[str, str] = {}
    for line in written.decode("utf-8", "replace").splitlines():
        if row := _ROW.fullmatch(line.strip()):
            found[row[1]] = _unquoted(row[2])
    found |= os.environ
    return {name: value for name, value in found.items() if not secret_name(name) and not has_credentials(value)}


def _unquoted(value: str) -> str:
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return re.sub(r"[ \t]+#.*", "", value)
