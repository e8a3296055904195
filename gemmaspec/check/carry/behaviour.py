"""`patch verify --by-behaviour`: what the probes say of the conflicts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gemmaspec.check.carry.patchset import PatchOnTree, PatchSet
from gemmaspec.check.proof.behaviour import Behaviour
from gemmaspec.check.proof.source import source_of
from gemmaspec.core import launcher
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.patching.judged import deciding_probe
from gemmaspec.core.patching.patch import Patch
from gemmaspec.run.trees.tree import TreeSource


def ask(
    cells: Sequence[PatchOnTree], patches: PatchSet, say: Callable[[str], None]
) -> tuple[list[PatchOnTree], list[str]]:
    """Return the cells, with `superseded` for a conflict whose probe finds no bug; and notes on what was not asked."""
    asked, notes = [], []
    with Behaviour(say) as behaviour:
        for cell in cells:
            patch = patches.every.get(cell.verdict.patch)
            if patch is None or cell.verdict.state not in ("conflict", "ambiguous", "missing"):
                asked.append(cell)
                continue
            try:
                folder = _folder(cell.place)
                asked.append(_asked(cell, patch, folder, behaviour) if folder else cell)
                notes += [] if folder else [f"{patch.id} on {cell.place}: a probe needs a release or --tree"]
            except GemmaspecError as error:
                asked.append(cell)
                notes.append(f"{patch.id} on {cell.place}: {error.message}")
    return asked, notes


def _folder(place: TreeSource) -> Path | None:
    """Return a folder with the whole vllm/ of a place; None for an image or a running server."""
    if place.kind == "release":
        return source_of(place.ref)
    if place.kind == "tree":
        return Path(place.ref)
    return None


def _asked(cell: PatchOnTree, patch: Patch, folder: Path, behaviour: Behaviour) -> PatchOnTree:
    seen, state = behaviour.of(patch, folder), cell.verdict.state
    if seen.state == "closed":
        rules = ", ".join(_rules(patch, folder, cell.vllm))
        if rules:
            add = f"; reviewed, add to superseded: {rules}"
        else:
            add = ""
        detail = f"the probe finds no bug: {seen.seen}; {_at_a_start(patch)}{add}"
        if deciding_probe(patch.folder):
            state = "superseded"
    elif seen.state == "open":
        detail = f"the bug is there: {seen.seen}; a start with it ends; "
        detail += f"run gemmaspec patch rebase {patch.id} --tree {folder}"
    else:
        detail = f"the probe failed: {seen.seen}; {cell.verdict.detail}"
    return dataclasses.replace(cell, verdict=dataclasses.replace(cell.verdict, state=state, detail=detail))


def _at_a_start(patch: Patch) -> str:
    """Return what a start makes of a probe that finds no bug."""
    if deciding_probe(patch.folder):
        return "a start asks it too, and goes on without the patch"
    return "a start ends, because nothing shows that this probe knows a wrong fix"


def _rules(patch: Patch, folder: Path, vllm: str) -> Iterator[str]:
    """Yield a rule for each function of the patch that the folder has, for somebody to review."""
    for edit in patch.variants[-1].files:
        data = launcher.reader_of(folder.absolute() / "vllm")(edit.path)
        with contextlib.suppress(*launcher.NOT_PYTHON):
            tree = launcher.Source(data or b"").tree
            for scope in dict.fromkeys(hunk.function for hunk in edit.hunks if hunk.function):
                if nodes := launcher.definitions(tree, scope):
                    digest = launcher.tree_digest(nodes)
                    yield f"{{path: {edit.path}, scope: {scope}, release: {vllm!r}, tree: {digest!r}}}"
