"""Speed patches and their evidence, written for tests; the figures are made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATCH = """\
id: {id}
title: {id} makes it faster
purpose: speed
hole: It is slow.
leaves_alone: The rest.
required_by: {{methods: [mtp], when: always}}
runner: any
speculation_only: false
{pays}variants:
  - {{diff: "{diff}", versions: "{versions}", scopes: {{{path}: [{scope}]}}}}
{more}drop_when: never
licence: Apache-2.0
author: somebody
"""
CLAIM = '  - {versions: ">=0.32.0,<0.33", gpus: [hopper], methods: [mtp], backends: [TRITON_ATTN]}\n'
DIFF = "--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{old}\n+{new}\n"


def row(patches: Sequence[str] = (), **changed: Any) -> dict[str, Any]:
    """One cell of evidence."""
    own = {"method": "mtp", "k": 4, "concurrency": 1, "context": 8192}
    measured = {"tokens_per_second": 67.0, "step_ms": 39.2, "compile": "default", "vllm": "0.32.0"}
    found = {**own, **measured, "attention_backend": "TRITON_ATTN", "patches": list(patches), **changed}
    return {"acceptance": [0.7**position for position in range(1, found["k"] + 1)], **found}


def evidence(*rows: dict[str, Any], **changed: Any) -> str:
    """A file with one run on an H200."""
    run = {"machine": "h200", "gpu": "NVIDIA H200", "capability": "9.0", "date": "2026-11-23", "source": "a test"}
    return json.dumps({"schema": 1, "runs": [{**run, "rows": list(rows), **changed}]})


def write_speed_patch(
    folder: Path,
    id_: str = "faster",
    *,
    path: str = "vllm/m.py",
    scope: str = '""',
    old: str = "a = 1",
    new: str = "a = 2",
    diff: str = "",
    versions: str = ">=0.30.0",
    pays: str = CLAIM,
    more: str = "",
    cells: str | None = None,
) -> Path:
    """A speed patch whose evidence supports its claim unless told otherwise."""
    place = folder / id_
    place.mkdir(parents=True)
    claims = f"pays:\n{pays}" if pays else "reviewed: false\n"
    named = {"diff": "0.30.diff", "versions": versions, "path": path, "scope": scope}
    (place / "patch.yaml").write_text(PATCH.format(id=id_, pays=claims, more=more, **named))
    (place / "0.30.diff").write_text(diff or DIFF.format(path=path, old=old, new=new))
    if pays or cells:
        (place / "evidence.json").write_text(cells or evidence(row(), row([id_], step_ms=17.3)))
    return place
