"""The places of a new diff in the vLLM that it was made on, in known.json, until `patch known` reads the releases."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gemmaspec import launcher
from gemmaspec.patching.hashes import KNOWN_FILE, fingerprint
from gemmaspec.patching.patch import Patch
from gemmaspec.patching.places import place_of

Pairs = Mapping[str, tuple[bytes, bytes]]
"""The files of one vLLM by path, without and with the patch."""


def with_places(patch: Patch, diff: str, vllm: str, pairs: Pairs) -> str:
    """Return known.json with the places of one diff; those of other diffs stay.

    Without them only the lines of a hunk would decide, and a copy of them elsewhere could be taken for its place.
    """
    known: dict[str, Any] = {"schema": 1, "variants": {}}
    file = patch.folder / KNOWN_FILE
    with contextlib.suppress(OSError, ValueError):
        known["variants"] = dict(json.loads(file.read_bytes())["variants"])
    rules = [rule.model_dump() for rule in patch.text.superseded]
    variant = next(candidate for candidate in patch.variants if f"{candidate.name}.diff" == diff)
    files = {edit.path: [_row(edit, vllm, *pairs[edit.path])] for edit in variant.files}
    known["variants"][variant.name] = {"made_for": fingerprint(variant.files, rules), "files": files}
    return json.dumps(known, indent=1) + "\n"


def _row(edit: launcher.FileEdit, vllm: str, before: bytes, after: bytes) -> dict[str, Any]:
    source, patched = launcher.Source(before), launcher.Source(after)
    at = [(launcher.find_hunk(hunk, source).index or 0, hunk) for hunk in edit.hunks]
    return {
        "vllm": [vllm],
        "before": launcher.sha256(before),
        "lines": [index + 1 for index, _ in at],
        "after": launcher.sha256(after),
        "places": [asdict(place_of(hunk, source, index, patched)) for index, hunk in at],
    }
