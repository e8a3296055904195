"""known.json: what the files of a patch are in every release, and what the patch makes of them, by sha256.

It is generated (`gemmaspec patch known`) from the released wheels. With it a start can tell a file as released
from one that somebody has edited, and that the patched file is the one that was looked at here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from gemmaspec.errors import PatchError
from gemmaspec.launcher import launch
from gemmaspec.launcher.launch import Known

KNOWN_FILE: Final = "known.json"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One file of one release: its sha256, and that of the patched file ("" when the patch left it alone)."""

    variant: str
    path: str
    vllm: str
    before: str
    after: str


def read_known(folder: Path, variant: str, diff_sha256: str) -> Mapping[str, tuple[Known, ...]]:
    """By path, what is known of a variant's files; nothing when its diff has changed since it was generated.

    Raises PatchError for a file that is not what `known_text` writes.
    """
    file = folder / KNOWN_FILE
    if not file.is_file():
        return {}
    try:
        entry = json.loads(file.read_bytes())["variants"].get(variant) or {}
        if entry.get("diff") != diff_sha256:
            return {}
        return {path: launch.build(tuple[Known, ...], rows, path) for path, rows in entry["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PatchError(
            f"{file}: not as it was generated: {error}", hint=f"gemmaspec patch known {folder.name}"
        ) from None


def known_text(diffs: Mapping[str, str], seen: Iterable[Seen]) -> str:
    """The text of known.json; `diffs` is the sha256 of each variant's diff. The same input, the same bytes."""
    variants: dict[str, Any] = {name: {"diff": diff, "files": {}} for name, diff in diffs.items()}
    for one in sorted(seen, key=lambda one: (one.variant, one.path, Version(one.vllm))):
        rows = variants[one.variant]["files"].setdefault(one.path, [])
        for row in rows:
            if (row["before"], row["after"]) == (one.before, one.after):
                row["vllm"].append(one.vllm)
                break
        else:
            rows.append({"vllm": [one.vllm], "before": one.before, "after": one.after})
    return json.dumps({"schema": 1, "variants": variants}, indent=1) + "\n"
