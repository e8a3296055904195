"""`patch known`: each patch's known.json, from the released wheels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from gemmaspec.deploy.patchset import load_set
from gemmaspec.files import write_whole
from gemmaspec.launcher import launch
from gemmaspec.patching import decide as deciding
from gemmaspec.patching.known import KNOWN_FILE, Seen, known_text
from gemmaspec.trees import listing as listing_of
from gemmaspec.trees.released import Releases
from gemmaspec.trees.tree import Tree, Unreadable
from gemmaspec.trees.verdicts import Judge


def write_known(folder: Path, names: Sequence[str] = (), *, check: bool = False) -> list[Path]:
    """Write known.json of the named patches, or all, where it is not what it would be; returns those files.

    With `check` nothing is written. Raises PatchError for a refused patch, EnvironmentMissing for a release
    that cannot be read.
    """
    patches = load_set(names, (folder,))
    for error in patches.refused.values():
        raise error
    listing = listing_of.published()
    versions = [one for one in listing.releases() if launch.RELEASE.fullmatch(one) and patches.claims(one)]
    seen: dict[str, list[Seen]] = {name: [] for name in patches.judges}
    for tree in Releases(listing).open(versions, patches.needed_paths):
        if isinstance(tree, Unreadable):
            raise tree.error
        for name, judge in patches.judges.items():
            seen[name] += _seen(tree, judge)
    changed = []
    for name, found in seen.items():
        text = known_text({variant.name: variant.sha256 for variant in patches.every[name].variants}, found)
        file = patches.every[name].folder / KNOWN_FILE
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            changed.append(file)
            if not check:
                write_whole(file, text)
    return changed


def _seen(tree: Tree, judge: Judge) -> Iterator[Seen]:
    """The files of one release, before and after; what was known so far has no say in it."""
    chain = tuple(_without_known(patch) for patch in judge.patches)
    verdict = deciding.decide(chain, tree.vllm, tree.read)[-1]
    after = {file.path: (file.before, file.after) for file in verdict.files if verdict.state == "applies"}
    for variant in launch.candidates(judge.patches[-1], tree.vllm):
        for edit in variant.files:
            data = tree.read(edit.path)
            if data is None:
                continue
            before = launch.sha256(data)
            made_from, made = after.get(edit.path, (None, None))
            yield Seen(
                variant=variant.name,
                path=edit.path,
                vllm=tree.vllm,
                before=before,
                after=made or "" if made_from == before else "",
            )


def _without_known(patch: launch.Patch) -> launch.Patch:
    variants = (
        dataclasses.replace(variant, files=tuple(dataclasses.replace(edit, known=()) for edit in variant.files))
        for variant in patch.variants
    )
    return dataclasses.replace(patch, variants=tuple(variants))
