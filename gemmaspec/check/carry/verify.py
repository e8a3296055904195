"""`patch verify`: decide every requested patch on every requested tree."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gemmaspec.check.carry.patchset import PatchOnTree, PatchSet, load_set
from gemmaspec.check.carry.shipped import is_required, shipped_images
from gemmaspec.core import data
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.patching.decide import FileVerdict, PatchVerdict
from gemmaspec.core.patching.judged import deciding_probe
from gemmaspec.run.engine.choose import seats
from gemmaspec.run.engine.server import Engine, Server
from gemmaspec.run.kept import stacks
from gemmaspec.run.trees import listing as listing_of
from gemmaspec.run.trees.folder import open_folder
from gemmaspec.run.trees.listing import Listing
from gemmaspec.run.trees.released import Releases
from gemmaspec.run.trees.tree import Tree, TreeSource, Unreadable


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """Which patches on which trees; by default every release in their ranges and the local shipped images."""

    patches: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    releases: tuple[str, ...] = ()
    """In the syntax of `trees.listing.choose`."""
    all_releases: bool = False
    images: tuple[str, ...] = ()
    trees: tuple[Path, ...] = ()
    running: tuple[str, ...] = ()
    strict: bool = False
    """Whether a drifted patch counts as a difference."""
    by_behaviour: bool = False
    """Whether to run the probe of a patch that conflicts."""
    refresh: bool = False
    """Query the package index even if it was already queried today."""

    @property
    def names_no_tree(self) -> bool:
        """Whether the request leaves the choice of trees to gemmaspec."""
        return not (self.releases or self.all_releases or self.images or self.trees or self.running)


@dataclass(kw_only=True)
class Verification:
    """Cells by tree, in the requested order; unreadable trees; the cost."""

    cells: list[PatchOnTree] = field(default_factory=list)
    unread: list[Unreadable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bytes_received: int = 0
    bytes_of_wheels: int = 0

    @property
    def conflict(self) -> bool:
        """Whether a required patch does not fit somewhere."""
        return any(cell.breaks for cell in self.cells)

    @property
    def drift(self) -> bool:
        """Whether the function of a required patch has changed somewhere."""
        return any(cell.drifts for cell in self.cells)


def verify(
    request: VerifyRequest,
    progress: Callable[[TreeSource], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Decide all requested patches on all trees; `progress` is called after each tree.

    The outcome lists unreadable trees. Raise UsageError for a contradictory request, and PatchError for an invalid
    patch if no tree is left to show it on: it names no releases.
    """
    patches, outcome = load_set(request.patches, request.folders), Verification()
    for tree in _trees(request, patches, outcome):
        if isinstance(tree, Unreadable):
            outcome.unread.append(tree)
        else:
            outcome.cells += decide_tree(tree, patches, asked_for=_asked_for(request, patches))
        progress(tree.place)
    if patches.refused and not (outcome.cells or outcome.unread or request.running):
        raise next(iter(patches.refused.values()))
    for name in request.running:
        _add_running(name, request, outcome)
        progress(TreeSource(kind="running", ref=name))
    if request.by_behaviour:
        from gemmaspec.check.carry.behaviour import ask

        outcome.cells, notes = ask(outcome.cells, patches, say)
        outcome.notes += notes
    return outcome


def _asked_for(request: VerifyRequest, patches: PatchSet) -> frozenset[str]:
    """Return the patches that the command names, directly or by the user's folder."""
    asked_for = set(request.patches)
    if request.folders:
        asked_for.update(patches.refused)
        asked_for.update(name for name, patch in patches.every.items() if patch.folder.parent != data.PATCHES)
    return frozenset(asked_for)


def decide_tree(tree: Tree, patches: PatchSet, *, asked_for: frozenset[str] = frozenset()) -> list[PatchOnTree]:
    """Return every patch of the set on one tree, by id; `asked_for` ones count even if no profile lists them."""
    verdicts = [judge.decide(tree) for judge in patches.judges.values()]
    verdicts += [_invalid(name, str(error)) for name, error in patches.refused.items()]
    verdicts.sort(key=lambda verdict: verdict.patch)
    cells = []
    for verdict in verdicts:
        required = is_required(verdict.patch, asked_for=verdict.patch in asked_for)
        if tree.place.kind != "release":
            verdict = dataclasses.replace(verdict, detail=_with_start(verdict, patches, required=required))
        cells.append(PatchOnTree(place=tree.place, vllm=tree.vllm, verdict=verdict, required=required))
    return cells


def _with_start(verdict: PatchVerdict, patches: PatchSet, *, required: bool) -> str:
    """Return the detail of a verdict on a build, with what a start makes of it where the patch does not fit."""
    patch = patches.every.get(verdict.patch)
    if verdict.fits or verdict.state == "invalid" or patch is None:
        return verdict.detail
    if patch.is_speed:
        does = "a start leaves it out"
    elif deciding_probe(patch.folder):
        if required:
            ends = "it ends"
        else:
            ends = "it goes on without the patch"
        does = "a start runs its probe first (half a minute as a rule), as --by-behaviour does"
        does += f"; if the bug is there, {ends}"
    else:
        if required:
            does = "a start that requires it ends with exit code 5"
        else:
            does = "a start goes on without it"
    return "; ".join(filter(None, (verdict.detail, does)))


def _invalid(patch: str, why: str) -> PatchVerdict:
    reasons = [re.sub(r"^\S*patch\.yaml: ", "", line) for line in why.splitlines()]
    files = []
    for reason in reasons:
        files.append(FileVerdict(path=f"{patch}/patch.yaml", state="invalid", line=None, detail=reason))
    return PatchVerdict(patch=patch, state="invalid", variant=None, files=tuple(files))


def _trees(request: VerifyRequest, patches: PatchSet, outcome: Verification) -> Iterator[Tree | Unreadable]:
    yield from _released(request, patches, outcome)
    for ref, python in _images(request, outcome).items():
        yield _image(ref, python, patches)
    for folder in request.trees:
        try:
            yield open_folder(folder, patches.needed_paths)
        except GemmaspecError as error:
            yield Unreadable(place=TreeSource(kind="tree", ref=str(folder)), error=error)


def _released(request: VerifyRequest, patches: PatchSet, outcome: Verification) -> Iterator[Tree | Unreadable]:
    try:
        listing, versions = _versions(request, patches)
    except EnvironmentMissing as error:
        asked = " ".join(request.releases) or "all"
        yield Unreadable(place=TreeSource(kind="release", ref=asked), error=error)
        return
    if listing.note:
        outcome.notes.append(listing.note)
    releases = Releases(listing)
    order = {version: index for index, version in enumerate(versions)}
    trees = releases.open(versions, patches.needed_paths)
    decided: dict[str, Tree | Unreadable] = {}
    waiting = iter(order)
    expected = next(waiting, None)
    for tree in trees:
        decided[tree.place.ref] = tree
        while expected in decided:  # in order, each as soon as the ones before it are done
            yield decided.pop(expected)
            expected = next(waiting, None)
    outcome.bytes_received, outcome.bytes_of_wheels = releases.bytes_received, releases.bytes_of_wheels


def _versions(request: VerifyRequest, patches: PatchSet) -> tuple[Listing, list[str]]:
    """Return the requested releases, from the oldest to the newest."""
    if not (request.releases or request.all_releases or request.names_no_tree):
        return Listing(wheels={}), []
    listing = listing_of.published(refresh=request.refresh)
    chosen: list[str] = []
    if request.releases:
        listing, chosen = listing_of.choose(request.releases, listing)
    if not request.releases or request.all_releases:
        chosen += patches.claimed(listing.releases())
    return listing, [release for release in listing.releases() if release in chosen]


def _images(request: VerifyRequest, outcome: Verification) -> Mapping[str, str]:
    """Return the images to inspect, each with the interpreter that runs its vLLM."""
    if request.images or request.names_no_tree:
        shipped = shipped_images()
    else:
        shipped = {}
    if not request.names_no_tree:
        return {ref: shipped.get(ref, "") for ref in request.images}
    from gemmaspec.run.trees import image

    try:
        present = image.present(shipped)
    except EnvironmentMissing as error:
        outcome.notes.append(f"did not inspect images: {error.message}")
        return {}
    return {ref: shipped[ref] for ref in present}


def _image(ref: str, python: str, patches: PatchSet) -> Tree | Unreadable:
    from gemmaspec.run.trees import image

    try:
        return image.open_image(ref, patches.needed_paths, python=python)
    except GemmaspecError as error:
        return Unreadable(place=TreeSource(kind="image", ref=ref), error=error)


def _add_running(name: str, request: VerifyRequest, outcome: Verification) -> None:
    """Add the patches of a running server's own plan, from its report; on several machines, from each."""
    try:
        started = stacks.find(name)
        ranks = seats(stacks.engine_of(started), started.server)
    except GemmaspecError as error:
        outcome.unread.append(Unreadable(place=TreeSource(kind="running", ref=name), error=error))
        return
    for host, engine, server in ranks:
        _add_rank(f"{name} on {host}" if host else name, engine, server, request, outcome)


def _add_rank(ref: str, engine: Engine, server: Server, request: VerifyRequest, outcome: Verification) -> None:
    from gemmaspec.run.trees import verdicts as provenance

    place = TreeSource(kind="running", ref=ref)
    try:
        report = engine.report(server)
        if report is None:
            raise EnvironmentMissing(
                f"{ref} is not running or has not written its report yet", hint=f"gemmaspec status {server.name}"
            )
        findings = provenance.compare(server, engine, report)
        verdicts = provenance.verdicts(report, findings)
    except GemmaspecError as error:
        outcome.unread.append(Unreadable(place=place, error=error))
        return
    if attested := report.get("attested"):
        outcome.notes.append(f"{ref}: {attested['text']}")
    required = {row["patch"]: bool(row["required"]) for row in report["patches"]}
    vllm = str(report["vllm"]["version"])
    for verdict in verdicts:
        if not request.patches or verdict.patch in request.patches:
            cell = PatchOnTree(place=place, vllm=vllm, verdict=verdict, required=required[verdict.patch])
            outcome.cells.append(cell)
