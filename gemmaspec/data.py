"""Where the data folders are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parent
_BUNDLED: Final = _PACKAGE / "_data"
ROOT: Final = _BUNDLED if _BUNDLED.is_dir() else _PACKAGE.parent

PROFILES: Final = ROOT / "profiles"
PATCHES: Final = ROOT / "patches"
TEMPLATES: Final = ROOT / "templates"
COMPOSE: Final = ROOT / "compose"
LAUNCHER: Final = _PACKAGE / "launcher" / "launch.py"
