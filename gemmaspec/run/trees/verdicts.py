"""Cached verdicts: the same patch on the same files by the same launcher is decided once."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from gemmaspec.core import data, launcher, records
from gemmaspec.core.files import cache_dir, keep, kept
from gemmaspec.core.patching import decide as deciding
from gemmaspec.core.patching.decide import PatchVerdict
from gemmaspec.core.patching.patch import Patch
from gemmaspec.run.trees.tree import Tree


@dataclasses.dataclass(frozen=True)
class Judge:
    """A patch with all that it needs, ready to be decided on trees."""

    id: str
    patches: tuple[launcher.Patch, ...]
    """The patches that it needs, then the patch itself."""
    digest: str
    """sha256 of the content of `patches`."""

    def needed_paths(self, _version: str = "") -> frozenset[str]:
        """Return every file of a tree that deciding would read."""
        return deciding.needed_paths(self.patches)

    def decide(self, tree: Tree) -> PatchVerdict:
        """Return the verdict on a tree, from the cache if possible."""
        file = cache_dir() / "verdicts" / f"{self._key(tree)}.json"
        known = records.parse(PatchVerdict, kept(file))
        if known:
            return known
        verdict = deciding.decide(self.patches, tree.vllm, tree.read)[-1]
        keep(file, json.dumps(dataclasses.asdict(verdict)).encode())
        return verdict

    def _key(self, tree: Tree) -> str:
        """Return a key of everything that affects the verdict."""
        files = {
            path: launcher.sha256(data) if (data := tree.read(path)) is not None else None
            for path in sorted(self.needed_paths(tree.vllm))
        }
        return launcher.sha256(json.dumps([_engine(), self.digest, self.id, tree.vllm, files]).encode())


def judge(patch: Patch, patches: Mapping[str, Patch]) -> Judge:
    """Return a judge of one patch. Raise PatchError if `patches` lacks one that it needs."""
    chain = deciding.chain(patch, patches)
    text = json.dumps([dataclasses.asdict(link) for link in chain], sort_keys=True)
    return Judge(id=patch.id, patches=chain, digest=launcher.sha256(text.encode()))


@cache
def _engine() -> str:
    """Return a key of the launcher's code and the Python version, because both affect the verdict."""
    sources = (file.read_bytes() for file in (data.LAUNCHER, Path(deciding.__file__)))
    return launcher.sha256(b"".join([*sources, sys.version.encode()]))
