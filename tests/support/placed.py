"""Places of hunks in an earlier release, for patches of the FAKE vllm: without them the lines alone would decide."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gemmaspec.check.carry.newvariant import with_places
from gemmaspec.core import launcher
from gemmaspec.core.errors import PatchError
from gemmaspec.core.patching.hashes import KNOWN_FILE
from gemmaspec.core.patching.patch import load_patch
from gemmaspec.core.patching.places import place_of

EARLIER = "0.18.0"


def earlier(text: str) -> bytes:
    """The file of the earlier release: the same code in other bytes, so that its sha256 decides nothing."""
    return f"{text}# of {EARLIER}\n".encode()


def known_of(hunks: list[Any], text: str) -> list[dict[str, Any]]:
    """What a plan knows of a file, as JSON; nothing if the hunks do not apply to it."""
    try:
        edit = launcher.decode(launcher.FileEdit, {"path": "vllm/v1/core.py", "hunks": hunks, "known": []}, "hunks")
    except ValueError:
        return []
    before = earlier(text)
    done = launcher.decide_file(edit, before)
    if done.state != "applies" or done.after is None:
        return []
    source, after = launcher.Source(before), launcher.Source(done.after)
    at = [(hunk, launcher.find_hunk(hunk, source).index or 0) for hunk in edit.hunks]
    places = [json.loads(json.dumps(asdict(place_of(hunk, source, index, after)))) for hunk, index in at]
    sums = {"before": launcher.sha256(before), "after": launcher.sha256(done.after)}
    return [{"vllm": [EARLIER], **sums, "lines": [index + 1 for _, index in at], "places": places}]


def record(folder: Path, files: Mapping[str, str]) -> None:
    """Write known.json of a patch folder whose diffs apply to these files; leave out those that do not."""
    try:
        patch = load_patch(folder)
    except PatchError:
        return
    for variant in patch.variants:
        pairs = {edit.path: (earlier(files.get(edit.path, "")),) * 2 for edit in variant.files}
        done = [launcher.decide_file(edit, pairs[edit.path][0]) for edit in variant.files]
        if all(one.state == "applies" for one in done):
            after = {one.path: (one.before or b"", one.after or b"") for one in done}
            text = with_places(patch, f"{variant.name}.diff", EARLIER, after)
            (folder / KNOWN_FILE).write_text(text)
