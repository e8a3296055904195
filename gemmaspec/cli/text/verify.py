"""What `patch verify` prints: one line for each patch and vLLM, and the files that do not fit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gemmaspec.cli import output
from gemmaspec.cli.text import matrix, page
from gemmaspec.run.engine.lines import clean

if TYPE_CHECKING:
    from gemmaspec.check.carry.patchset import PatchOnTree
    from gemmaspec.check.carry.verify import Verification
    from gemmaspec.core.patching.decide import FileVerdict
    from gemmaspec.run.trees.tree import TreeSource, Unreadable


def verified(outcome: Verification, *, strict: bool, as_json: bool) -> int:
    """Print what `verify` found and return the exit code."""
    code = 0
    if outcome.conflict:
        code = 5
    elif outcome.unread:
        code = 4
    elif strict and outcome.drift:
        code = 3
    rows = [*map(_cell_document, outcome.cells), *map(_unread_document, outcome.unread)]
    shown = matrix.lines(outcome.cells, width=output.width_of(sys.stdout))
    page.answer({"ok": not code, "results": rows}, shown, as_json=as_json)
    for note in outcome.notes:
        output.progress(clean(f"note: {note}"))
    if outcome.bytes_of_wheels:
        output.progress(
            f"downloaded {outcome.bytes_received / 1e6:.1f} MB; "
            f"the whole wheels have {outcome.bytes_of_wheels / 1e9:.1f} GB"
        )
    told: set[str] = set()
    for unread in outcome.unread:
        if unread.error.message not in told:
            same = [str(failed.place) for failed in outcome.unread if failed.error.message == unread.error.message]
            output.progress(f"cannot read {', '.join(same)}: {unread.error.message}")
            if unread.error.hint:
                output.progress(f"  try: {unread.error.hint}")
        told.add(unread.error.message)
    return code


def _unread_document(failed: Unreadable) -> dict[str, Any]:
    return {
        "patch": None,
        "tree": _tree_document(failed.place, None),
        "state": "unread",
        "required": True,
        "variant": None,
        "detail": failed.error.message,
        "hint": failed.error.hint,
        "files": [],
    }


def _cell_document(cell: PatchOnTree) -> dict[str, Any]:
    verdict = cell.verdict
    return {
        "patch": verdict.patch,
        "tree": _tree_document(cell.place, cell.vllm),
        "state": verdict.state,
        "required": cell.required,
        "variant": verdict.variant,
        "detail": verdict.detail,
        "files": [_file_document(file) for file in verdict.files],
    }


def _tree_document(place: TreeSource, vllm: str | None) -> dict[str, Any]:
    return {"kind": place.kind, "ref": place.ref, "vllm": vllm}


def _file_document(file: FileVerdict) -> dict[str, Any]:
    """Return the row of one file, with the expected and the found lines if they differ."""
    names = ["path", "state", "line", "detail"]
    if file.expected or file.found:
        names += ["expected", "found"]
    return {name: getattr(file, name) for name in names}
