"""The data folders: next to the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parent
_BUNDLED: Final = _PACKAGE / "_data"
ROOT: Final = _BUNDLED if _BUNDLED.is_dir() else _PACKAGE.parent

PROFILES: Final = ROOT / "profiles"
PATCHES: Final = ROOT / "patches"
TEMPLATES: Final = ROOT / "templates"
COMPOSE: Final = ROOT / "compose"
MEASUREMENTS: Final = ROOT / "measurements"
PROMPTS: Final = ROOT / "prompts"
MODELS: Final = ROOT / "models"
"""The tiny models."""
DOCS: Final = ROOT / "docs"
"""Pages that `explain` reads; a wheel has only those."""
LAUNCHER: Final = _PACKAGE / "launcher" / "launch.py"
PROBE: Final = _PACKAGE / "launcher" / "probe.py"
RANK_FACTS: Final = _PACKAGE / "launcher" / "rank_facts.py"
LOOK: Final = _PACKAGE / "launcher" / "look.py"
TUNE_KERNELS: Final = _PACKAGE / "launcher" / "tune_kernels.py"
SIDECAR: Final = {
    "__main__.py": _PACKAGE / "sidecar" / "__main__.py",
    **{
        f"gemmaspec/{name}": _PACKAGE / name
        for name in (
            *("__init__.py", "webhooks.py", "live/__init__.py", "live/faults.py", "live/faults.py"),
            *("live/faults.py", "live/sample.py", "live/window.py", "sidecar/__init__.py", "sidecar/asking.py"),
            *(
                "sidecar/exchange.py",
                "sidecar/known.py",
                "sidecar/settings.py",
                "sidecar/telling.py",
                "sidecar/watcher.py",
            ),
        )
    },
}
"""What the watch in a container runs, by its name in that container."""


def patch_folders() -> tuple[Path, ...]:
    """Return the folders of patches: the shipped one, then those of $GEMMASPEC_PATCHES, which take precedence."""
    named = os.environ.get("GEMMASPEC_PATCHES", "").split(os.pathsep)
    return (PATCHES, *(Path(folder) for folder in named if folder))
