"""The data folders: next to the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parent.parent
BUNDLED: Final = _PACKAGE / "_data"
ROOT: Final = BUNDLED if BUNDLED.is_dir() else _PACKAGE.parent

PROFILES: Final = ROOT / "profiles"
PATCHES: Final = ROOT / "patches"
PROBES: Final = PATCHES / "_shared"
"""What probes import by its name."""
TEMPLATES: Final = ROOT / "templates"
COMPOSE: Final = ROOT / "compose"
MEASUREMENTS: Final = ROOT / "measurements"
PROMPTS: Final = ROOT / "prompts"
MODELS: Final = ROOT / "models"
"""The tiny models."""
TINY: Final = "state:tiny/"
"""How a profile names one: where `up` copies it, below the state folder."""
DOCS: Final = ROOT / "docs"
"""Pages that `explain` reads; a wheel has only those."""
LINT_CODES: Final = _PACKAGE / "check" / "lint" / "codes.md"
"""What each lint code means: a section for each."""
FORMATS: Final = _PACKAGE / "look" / "formats.md"
"""What the files of a stack hold: a section for each."""
LAUNCHER: Final = _PACKAGE / "core" / "launcher" / "launch.py"
PROBE: Final = _PACKAGE / "core" / "launcher" / "probe.py"
RANK_FACTS: Final = _PACKAGE / "core" / "launcher" / "rank_facts.py"
LOOK: Final = _PACKAGE / "core" / "launcher" / "look.py"
FIND_LAUNCHES: Final = PROBES / "find_launches.py"
_WATCH: Final = (
    *("__init__.py", "core/__init__.py", "core/webhooks.py", "run/__init__.py", "run/exchange.py", "look/__init__.py"),
    *(f"core/live/{name}.py" for name in ("__init__", "faults", "reaction", "reference", "sample", "window")),
    *(f"look/sidecar/{name}.py" for name in ("__init__", "asking", "known", "rounds", "telling", "watcher")),
)
SIDECAR: Final = {
    "__main__.py": _PACKAGE / "look" / "sidecar" / "__main__.py",
    **{f"gemmaspec/{name}": _PACKAGE / name for name in _WATCH},
}
"""What the watch in a container runs, by its name in that container."""


def shipped(model: str) -> Path | None:
    """Return the folder in which a tiny model ships that a profile names; None for any other model."""
    folder = MODELS / Path(model).name
    if model.startswith(TINY) and (folder / "config.json").is_file():
        return folder
    return None


def patch_folders() -> tuple[Path, ...]:
    """Return the folders of patches: the shipped one, then those of $GEMMASPEC_PATCHES, which take precedence."""
    named = os.environ.get("GEMMASPEC_PATCHES", "").split(os.pathsep)
    return (PATCHES, *(Path(folder) for folder in named if folder))
