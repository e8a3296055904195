"""known.json: the sha256 of a patch's files in every release, before and after the patch.

`gemmaspec patch known` generates it from the released wheels. With it a start can distinguish a released file from an
edited one, and patches the former without parsing it, because the result must be the known file. For an unknown file
it identifies the place of a hunk, and whether the function changed, by digests. It contains no lines of vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from gemmaspec.core import launcher
from gemmaspec.core.errors import PatchError
from gemmaspec.core.launcher import Known, Surroundings

KNOWN_FILE: Final = "known.json"
Rules = Sequence[Mapping[str, str]]
"""A patch's `superseded`, as plain data."""


@dataclass(frozen=True, kw_only=True)
class FileHash:
    """One file of one release: its sha256, and that of the patched file ("" if the patch does not change it)."""

    variant: str
    path: str
    vllm: str
    before: str
    lines: tuple[int, ...] = ()
    """The line of each hunk, from 1; empty if the patch does not change the file."""
    after: str = ""
    places: tuple[Surroundings, ...] = ()
    """The context of each hunk, and digests of its function."""


def fingerprint(files: Iterable[launcher.FileEdit], rules: Rules) -> str:
    """Return the sha256 of everything that affects a variant's decision: its hunks, scopes and the patch's rules."""
    edits = []
    for edit in files:
        edits.append([edit.path, list(map(asdict, edit.hunks))])
    return launcher.sha256(json.dumps([edits, rules], sort_keys=True).encode())


def parse_known(file: Path, content: bytes | None, variant: str, made_for: str) -> Mapping[str, tuple[Known, ...]]:
    """Return the known states of a variant's files by path; empty if its fingerprint is no longer `made_for`.

    Without a file nothing is known. Raise PatchError for one that `known_text` did not write.
    """
    if content is None:
        return {}
    try:
        entry = json.loads(content)["variants"].get(variant) or {}
        if entry.get("made_for") != made_for:
            return {}
        return {path: launcher.decode(tuple[Known, ...], rows, path) for path, rows in entry["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PatchError(
            f"{file}: edited after it was generated, or damaged: {error}",
            hint=f"gemmaspec patch known {file.parent.name}",
        ) from None


def known_text(made_for: Mapping[str, str], seen: Iterable[FileHash]) -> str:
    """Return the text of known.json; `made_for` is the fingerprint of each variant.

    The same input gives the same bytes.
    """
    variants: dict[str, Any] = {name: {"made_for": digest, "files": {}} for name, digest in made_for.items()}
    for reading in sorted(seen, key=lambda reading: (reading.variant, reading.path, Version(reading.vllm))):
        rows = variants[reading.variant]["files"].setdefault(reading.path, [])
        for row in rows:
            if (row["before"], row["after"]) == (reading.before, reading.after):
                row["vllm"] += [reading.vllm] if reading.vllm not in row["vllm"] else []
                break
        else:
            row = {"vllm": [reading.vllm], "before": reading.before, "lines": [*reading.lines], "after": reading.after}
            if reading.places:
                row["places"] = list(map(asdict, reading.places))
            rows.append(row)
    return json.dumps({"schema": 1, "variants": variants}, indent=1) + "\n"
