"""known.json: what the files of a patch are in every release, and what the patch makes of them, by sha256.

It is generated (`gemmaspec patch known`) from the released wheels. With it a start tells a file as released from
one that somebody has edited, and patches the former without parsing it again: the known file must come out. In a file
that is not known it tells the place of a hunk and whether the function has changed, by digests: it holds no line of
vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from gemmaspec import launcher
from gemmaspec.errors import PatchError
from gemmaspec.launcher import Known, Surroundings

KNOWN_FILE: Final = "known.json"
Rules = Sequence[Mapping[str, str]]
"""A patch's `superseded`, as plain data."""


@dataclass(frozen=True, kw_only=True)
class FileHash:
    """One file of one release: its sha256, and that of the patched file ("" when the patch left it alone)."""

    variant: str
    path: str
    vllm: str
    before: str
    lines: tuple[int, ...] = ()
    """Where each hunk goes, from 1; none when the patch left the file alone."""
    after: str = ""
    places: tuple[Surroundings, ...] = ()
    """What stands around each hunk, and digests of its function."""


def fingerprint(files: Iterable[launcher.FileEdit], rules: Rules) -> str:
    """The sha256 of all that decides about a variant: its hunks and scopes, and the patch's rules."""
    edits = [[edit.path, [asdict(hunk) for hunk in edit.hunks]] for edit in files]
    return launcher.sha256(json.dumps([edits, rules], sort_keys=True).encode())


def read_known(folder: Path, variant: str, made_for: str) -> Mapping[str, tuple[Known, ...]]:
    """By path, what is known of a variant's files; nothing when it has changed since (`made_for`: its fingerprint).

    Raises PatchError for a file that is not what `known_text` writes.
    """
    file = folder / KNOWN_FILE
    if not file.is_file():
        return {}
    try:
        entry = json.loads(file.read_bytes())["variants"].get(variant) or {}
        if entry.get("made_for") != made_for:
            return {}
        return {path: launcher.decode(tuple[Known, ...], rows, path) for path, rows in entry["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PatchError(
            f"{file}: not as it was generated: {error}", hint=f"gemmaspec patch known {folder.name}"
        ) from None


def known_text(made_for: Mapping[str, str], seen: Iterable[FileHash]) -> str:
    """The text of known.json; `made_for` is the fingerprint of each variant. The same input, the same bytes."""
    variants: dict[str, Any] = {name: {"made_for": digest, "files": {}} for name, digest in made_for.items()}
    for one in sorted(seen, key=lambda one: (one.variant, one.path, Version(one.vllm))):
        rows = variants[one.variant]["files"].setdefault(one.path, [])
        for row in rows:
            if (row["before"], row["after"]) == (one.before, one.after):
                row["vllm"].append(one.vllm)
                break
        else:
            row = {"vllm": [one.vllm], "before": one.before, "lines": [*one.lines], "after": one.after}
            rows.append(row | ({"places": [asdict(place) for place in one.places]} if one.places else {}))
    return json.dumps({"schema": 1, "variants": variants}, indent=1) + "\n"
