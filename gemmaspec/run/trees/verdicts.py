"""Verdicts on patches: on a tree, each decided once; of a running server, by its files, its report and its plan."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from gemmaspec.core import data, launcher, records
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import UnreadableFile, cache_dir, keep, kept, read_regular
from gemmaspec.core.patching import decide as deciding
from gemmaspec.core.patching import plan as plan_of
from gemmaspec.core.patching.decide import FileVerdict, PatchVerdict
from gemmaspec.core.patching.patch import Patch
from gemmaspec.run.engine.server import Engine, Server
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
    chain = plan_of.chain(patch, patches)
    text = json.dumps([dataclasses.asdict(link) for link in chain], sort_keys=True)
    return Judge(id=patch.id, patches=chain, digest=launcher.sha256(text.encode()))


@cache
def _engine() -> str:
    """Return a key of the launcher's code and the Python version, because both affect the verdict."""
    sources = (file.read_bytes() for file in (data.LAUNCHER, Path(deciding.__file__)))
    return launcher.sha256(b"".join([*sources, sys.version.encode()]))


IN: Final = ("applies", "drifted", "applied")
"""States of a patch that the server has to run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangedFile:
    """A file of the stack, the overlay or the package that is not as it was."""

    path: str
    """The file's path on the server; for package and overlay files, relative to the folder that contains vllm/."""
    place: str
    """`stack`, `overlay` or `package`."""
    detail: str

    def __str__(self) -> str:
        return f"{self.path} ({self.place}): {self.detail}"


def compare(server: Server, engine: Engine, report: Mapping[str, Any]) -> tuple[ChangedFile, ...]:
    """Return every difference from the report; empty if there is none."""
    try:
        return (*_changed_plan(server.folder, report), *_changed_on_server(server, engine, report))
    except (KeyError, TypeError, AttributeError, ValueError):
        detail = "this version of the launcher did not write it"
        return (ChangedFile(path="report.json", place="stack", detail=detail),)


def _changed_plan(folder: Path, report: Mapping[str, Any]) -> Iterator[ChangedFile]:
    """Yield the plan if it differs from its own sha256 or from the plan of the start."""
    path = str(folder / "plan.json")
    try:
        plan = json.loads(read_regular(folder / "plan.json") or b"")
        sha256 = launcher.plan_digest(plan)
    except UnreadableFile as error:
        yield ChangedFile(path=path, place="stack", detail=f"it cannot be read: {error.why}")
        return
    except (ValueError, AttributeError, RecursionError) as error:
        yield ChangedFile(path=path, place="stack", detail=f"it cannot be read: {error}")
        return
    if plan.get("sha256") != sha256:
        yield ChangedFile(path=path, place="stack", detail="it was changed after it was rendered (sha256)")
    elif sha256 != report["plan_sha256"]:
        yield ChangedFile(path=path, place="stack", detail="the server was started with another plan")


def _changed_on_server(server: Server, engine: Engine, report: Mapping[str, Any]) -> Iterator[ChangedFile]:
    """Yield files that differ from the report: in the package before the first patch, in the overlay after the last."""
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for row in (row for patch in report["patches"] for row in patch["files"]):
        launcher.check_path(row["path"])
        if row["sha256_before"]:
            before.setdefault(row["path"], row["sha256_before"])
        if row["sha256_after"] and row["state"] == "applies":
            after[row["path"]] = row["sha256_after"]
    package, overlay = report["vllm"]["path"], report["overlay"]
    in_package = {path: f"{package}/{path.partition('/')[2]}" for path in before}
    in_overlay = {path: f"{overlay}/{path}" for path in after if overlay}
    contents = engine.read_all(server, (*in_package.values(), *in_overlay.values()))
    for path, file in in_package.items():
        yield from _differs(path, "package", contents.get(file), before[path])
    for path, file in in_overlay.items():
        yield from _differs(path, "overlay", contents.get(file), after[path])


def _differs(path: str, place: str, content: bytes | None, sha256: str) -> Iterator[ChangedFile]:
    if content is None:
        yield ChangedFile(path=path, place=place, detail="it is missing")
    elif launcher.sha256(content) != sha256:
        detail = f"it was changed since the start: sha256 {launcher.sha256(content)[:12]}…, reported {sha256[:12]}…"
        yield ChangedFile(path=path, place=place, detail=detail)


def verdicts(report: Mapping[str, Any], changed_files: tuple[ChangedFile, ...]) -> tuple[PatchVerdict, ...]:
    """Return the state of each patch in the running server, from its report unless a file changed since.

    Raise EnvironmentMissing for an invalid report.
    """
    changed = {file.path: f"{file.place}: {file.detail}" for file in changed_files if file.place != "stack"}
    changed = {**_not_attested(report), **changed}
    plan = next((str(file) for file in changed_files if file.place == "stack"), "")
    try:
        return tuple(_verdict(row, changed, plan) for row in report["patches"])
    except (KeyError, TypeError, AttributeError):
        raise EnvironmentMissing(f"cannot use the launcher's report: {plan or 'unknown schema'}") from None


def _not_attested(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the patched files that a process runs something else of, or all if a process has not attested."""
    attested = report.get("attested")
    if not attested or attested["state"] == "attested":
        return {}
    paths = {row["path"] for patch in report["patches"] if patch["state"] in IN for row in patch["files"]}
    modules = {path: launcher.module_of(path) for path in paths}
    differing = {}
    for process in attested["processes"]:
        for what in process["different"]:
            for path, module in modules.items():
                # a difference begins with the dotted name of what differs: the module, or a name in it
                if re.match(rf"{re.escape(module)}(?:\.[^:]*)?: ", what):
                    differing[path] = f"not attested: {process['title']} (pid {process['pid']}): {what}"
    return differing or {path: f"not attested: {'; '.join(attested['problems'][:3])}" for path in paths}


def _verdict(row: Mapping[str, Any], changed: Mapping[str, str], plan: str) -> PatchVerdict:
    files = tuple(_file_verdict(file, changed) for file in row["files"])
    if row["state"] in ("applies", "drifted"):
        state = "applied"
    else:
        state = row["state"]
    if any(file.path in changed for file in files):
        state = "conflict"
    if plan:
        state = "invalid"
        files = (*files, FileVerdict(path="plan.json", state="invalid", line=None, detail=plan))
    return PatchVerdict(patch=row["patch"], state=state, variant=row["variant"], files=files)


def _file_verdict(file: Mapping[str, Any], changed: Mapping[str, str]) -> FileVerdict:
    if file["state"] == "applies":
        as_started = "applied"
    else:
        as_started = file["state"]
    tampered = changed.get(file["path"])
    return FileVerdict(
        path=file["path"],
        state="conflict" if tampered else as_started,
        line=file["line"],
        detail=tampered or file["detail"],
        before=file["sha256_before"],
        after=file["sha256_after"],
    )
