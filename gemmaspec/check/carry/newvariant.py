"""A new variant of a patch: derived from two versions of its files, proven, and turned into the files to write.

The places of a new diff in the vLLM that it was made on, in known.json, until `patch known` reads the releases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemmaspec.core import launcher
from gemmaspec.core.errors import EnvironmentMissing, PatchConflict, PatchError, UsageError
from gemmaspec.core.patching import decide as deciding
from gemmaspec.core.patching import plan, rewrite
from gemmaspec.core.patching.hashes import KNOWN_FILE, fingerprint
from gemmaspec.core.patching.minimal import FileDiff, minimal_diff
from gemmaspec.core.patching.patch import Patch, load_patch, read_text
from gemmaspec.core.patching.places import place_of
from gemmaspec.run.trees.listing import Listing
from gemmaspec.run.trees.reader import ReleaseReader
from gemmaspec.run.trees.verdicts import Judge

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
    variants = {f"{variant.name}.diff": variant for variant in patch.variants}
    variant = variants[diff]
    files = {edit.path: [_row(edit, vllm, *pairs[edit.path])] for edit in variant.files}
    known["variants"][variant.name] = {"made_for": fingerprint(variant.files, rules), "files": files}
    return json.dumps(known, indent=1) + "\n"


def _row(edit: launcher.FileEdit, vllm: str, before: bytes, after: bytes) -> dict[str, Any]:
    source, patched = launcher.Source(before), launcher.Source(after)
    lines, places = [], []
    for hunk in edit.hunks:
        index = launcher.find_hunk(hunk, source).index or 0
        lines.append(index + 1)
        places.append(asdict(place_of(hunk, source, index, patched)))
    return {
        "vllm": [vllm],
        "before": launcher.sha256(before),
        "lines": lines,
        "after": launcher.sha256(after),
        "places": places,
    }


Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The input of a new variant; `files` maps a path to its (current, patched) contents in the new vLLM."""

    files: Mapping[str, tuple[bytes, bytes]]
    moved: Mapping[str, str]
    """New path -> old path, for code that moved to another file."""
    vllm: str
    base: str
    """The release of the nearest diff; "" if there is none."""
    floor: str
    """The first release of its range; "" to determine it."""


@dataclass(frozen=True, kw_only=True)
class WrittenVariant:
    """A proven variant: the file of its diff, its range, and every file to write by name."""

    diff: str
    versions: str
    files: Mapping[str, str]


def diffs_of(files: Mapping[str, tuple[bytes, bytes]]) -> list[FileDiff]:
    """Return the minimal diff of each changed file.

    Raise PatchError for a change that a patch cannot express, or if nothing changed.
    """
    changed = {path: pair for path, pair in files.items() if pair[0] != pair[1]}
    if not changed:
        raise PatchError(f"nothing was changed in {', '.join(files)}")
    diffs = [minimal_diff(path, *pair) for path, pair in sorted(changed.items())]
    for diff in diffs:
        prove(diff, *changed[diff.edit.path])
    return diffs


def prove(diff: FileDiff, before: bytes, after: bytes) -> None:
    """Raise PatchError unless the diff applies, compiles, is detected as applied, and reverts cleanly."""
    done = launcher.decide_file(diff.edit, before)
    again = launcher.decide_file(diff.edit, after)
    backwards = [dataclasses.replace(hunk, old=hunk.new, new=hunk.old) for hunk in diff.edit.hunks]
    back = launcher.decide_file(dataclasses.replace(diff.edit, hunks=tuple(backwards)), after)
    if (done.state, done.after, again.state, back.after) != ("applies", after, "applied", before):
        path, why = diff.edit.path, done.detail or again.detail or back.detail
        raise PatchError(f"{path}: the new diff failed its check: {why}")


def add_variant(judge: Judge, patch: Patch, wanted: Wanted, listing: Callable[[], Listing], say: Say) -> WrittenVariant:
    """Make the variant, and prove that it fits the new vLLM and that no other release loses its patch.

    Raise PatchError for a change that a patch cannot express, PatchConflict if another release would no longer fit.
    """
    diffs = diffs_of(wanted.files)
    edits = tuple(diff.edit for diff in diffs)
    others = _other_releases(judge, edits, listing, say)
    floor = wanted.floor or _floor(judge, edits, wanted, others)
    taken = [path.name for path in patch.folder.glob("*.diff")]
    variant = rewrite.NewVariant(
        diff=rewrite.diff_name(floor, taken), floor=floor, scopes={diff.edit.path: diff.scopes for diff in diffs}
    )
    file = patch.folder / "patch.yaml"
    text = rewrite.with_variant(read_text(file), variant, name=str(file))
    files = {variant.diff: "".join(diff.text for diff in diffs), "patch.yaml": text}
    new = _loaded(patch, files)
    _check_target(new, wanted)
    _check_others(judge, new, floor, others)
    made = new.variant_of(variant.diff)
    known = with_places(dataclasses.replace(new, folder=patch.folder), variant.diff, wanted.vllm, wanted.files)
    files[KNOWN_FILE] = known
    return WrittenVariant(diff=variant.diff, versions=made.versions, files=files)


def also_fits(patch: Patch, made_on: str, listing: Callable[[], Listing], say: Say) -> list[str]:
    """Return the other published releases that a new patch's one diff fits, oldest first; none without an index."""
    compiled = plan.launcher_patch(patch)
    edits = compiled.variants[0].files
    alone = dataclasses.replace(compiled, variants=(launcher.Variant("new", ">=0", edits),), superseded=())
    try:
        listed = listing()
    except EnvironmentMissing as error:
        say(f"did not check other releases: {error.message}")
        return []
    say("trying the diff on the other releases")
    versions = []
    for version in listed.releases():
        if launcher.PUBLISHED_RELEASE.fullmatch(version) and plain(version) != plain(made_on):
            files = ReleaseReader(version, listed).files({edit.path for edit in edits})
            if deciding.decide((alone,), version, files.__getitem__)[-1].state in ("applies", "drifted"):
                versions.append(version)
    return versions


def release_number(vllm: str) -> str:
    """Return the release number of a release or pre-release build. Raise UsageError if it states none."""
    number = re.match(launcher.VERSION_NUMBER, vllm)
    if not number:
        raise UsageError(f"the version of this vLLM is unknown ({vllm})", hint="name the first release: --since 0.34.0")
    return number[0]


@dataclass(frozen=True, kw_only=True)
class _Release:
    """Another release, with the verdict on the old patch."""

    version: str
    read: launcher.Read
    fitted: bool


def _other_releases(
    judge: Judge, edits: Sequence[launcher.FileEdit], listing: Callable[[], Listing], say: Say
) -> Callable[[Callable[[str], bool]], Iterator[_Release]]:
    """Return a function that yields the chosen published releases, newest first; none without a package index."""

    def chosen(wanted: Callable[[str], bool]) -> Iterator[_Release]:
        try:
            listed = listing()
        except EnvironmentMissing as error:
            say(f"did not check other releases: {error.message}")
            return
        for version in reversed(listed.releases()):
            if launcher.PUBLISHED_RELEASE.fullmatch(version) and wanted(version):
                paths = {*judge.needed_paths(version), *(edit.path for edit in edits)}
                files = ReleaseReader(version, listed).files(paths)
                verdict = deciding.decide(judge.patches, version, files.__getitem__)[-1]
                fitted = verdict.fits and not in_a_gap(verdict.state, judge.patches[-1], version)
                yield _Release(version=version, read=files.__getitem__, fitted=fitted)

    return chosen


def _floor(
    judge: Judge,
    edits: tuple[launcher.FileEdit, ...],
    wanted: Wanted,
    others: Callable[[Callable[[str], bool]], Iterator[_Release]],
) -> str:
    """Return the oldest release that the new diff fits, going down from the target until an old diff fits.

    It stops at the base, or at the first release of the patch if the base is newer than the target.
    """
    floor = release_number(wanted.vllm)
    top, bottom = launcher.release_key(floor), launcher.release_key(wanted.base or floor)
    if bottom > top:
        bottom = launcher.release_key(_lowest(judge.patches[-1].variants[0]))
    new = launcher.Variant("new", ">=0", edits)
    last = dataclasses.replace(judge.patches[-1], variants=(new,), superseded=())
    for other in others(lambda version: bottom < launcher.release_key(plain(version)) < top):
        verdict = deciding.decide((*judge.patches[:-1], last), other.version, other.read)[-1]
        if other.fitted or verdict.state not in ("applies", "drifted"):
            break
        floor = plain(other.version)
    return floor


def in_a_gap(state: str, patch: launcher.Patch, vllm: str) -> bool:
    """Return whether a release is in no range, but a later range exists; after the last range the patch is done."""
    last = _lowest(patch.variants[-1])
    return state == "not-needed" and launcher.release_key(release_number(vllm)) < launcher.release_key(last)


def _lowest(variant: launcher.Variant) -> str:
    return variant.specifier.partition(",")[0].removeprefix(">=")


def plain(version: str) -> str:
    """Return a release without .post1 or +cpu, as in ranges."""
    number = re.match(launcher.VERSION_NUMBER, version)
    if number:
        return number[0]
    return version


def _loaded(patch: Patch, files: Mapping[str, str]) -> Patch:
    """Return the patch folder as it would be, loaded like any other."""
    with tempfile.TemporaryDirectory(prefix="gemmaspec-") as beside:
        folder = Path(beside) / patch.id
        shutil.copytree(patch.folder, folder)
        for name, text in files.items():
            (folder / name).write_bytes(text.encode("utf-8"))
        return load_patch(folder)


def _drifts(patch: launcher.Patch, variant: str | None, files: Mapping[str, bytes]) -> bool:
    """Return whether a file of the variant would be found drifted."""
    for made in patch.variants:
        if made.name == variant and any(launcher.decide_file(edit, files[edit.path]).drifted for edit in made.files):
            return True
    return False


def _check_target(new: Patch, wanted: Wanted) -> None:
    """Raise PatchError unless the patch applies to the new vLLM by its own ranges and rules, and is then detected."""
    compiled = plan.launcher_patch(new)
    for state, side in (("applies", 0), ("applied", 1)):
        files = {path: pair[side] for path, pair in wanted.files.items()}
        verdict = deciding.decide((compiled,), wanted.vllm, files.get)[-1]
        states = {file.state for file in verdict.files}
        if states != {state} or not verdict.fits or _drifts(compiled, verdict.variant, files):
            details = "; ".join(file.detail for file in verdict.files)
            raise PatchError(f"{new.id}: the state on vllm {wanted.vllm} is {verdict.state}, not {state}: {details}")


def _check_others(
    judge: Judge, new: Patch, floor: str, others: Callable[[Callable[[str], bool]], Iterator[_Release]]
) -> None:
    """Raise PatchConflict if the new range takes a release away from a diff that fits it."""
    chain = (*judge.patches[:-1], plan.launcher_patch(new))

    def in_range(version: str) -> bool:
        return launcher.release_key(plain(version)) >= launcher.release_key(floor)

    lost = []
    for other in others(in_range):
        if other.fitted and not deciding.decide(chain, other.version, other.read)[-1].fits:
            lost.append(other.version)
    if lost:
        raise PatchConflict(
            f"{new.id}: a variant from {floor} on would not fit vllm {', '.join(lost)}, which the older diff fits; "
            "nothing was written",
            hint="add a separate range in patch.yaml for the releases that need another diff",
        )
