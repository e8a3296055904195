"""What a running server has, against what its launcher reported and its plan says: changed files, by name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmaspec import launcher
from gemmaspec.engine.server import Engine, Server
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.files import UnreadableFile, read_regular
from gemmaspec.patching.decide import FileVerdict, Verdict


@dataclass(frozen=True, kw_only=True)
class ChangedFile:
    """A file of the stack, the overlay or the package that is not as it was."""

    path: str
    """The file's path on the server; of package and overlay files, from the folder that holds vllm/."""
    place: str
    """`stack`, `overlay` or `package`."""
    detail: str

    def __str__(self) -> str:
        return f"{self.path} ({self.place}): {self.detail}"


def compare(server: Server, engine: Engine, report: Mapping[str, Any]) -> tuple[ChangedFile, ...]:
    """Everything that is not as reported; empty when all is well."""
    try:
        return (*_changed_plan(server.folder, report), *_changed_on_server(server, engine, report))
    except (KeyError, TypeError, AttributeError, ValueError):
        detail = "it is not one that this gemmaspec's launcher writes"
        return (ChangedFile(path="report.json", place="stack", detail=detail),)


def _changed_plan(folder: Path, report: Mapping[str, Any]) -> Iterator[ChangedFile]:
    """The plan against its own hash and against the one the server was started with."""
    path = str(folder / "plan.json")
    if not os.path.lexists(folder / "plan.json") and _is_single_file(folder):
        return
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
        yield ChangedFile(path=path, place="stack", detail="it is not the plan that the server was started with")


def _is_single_file(folder: Path) -> bool:
    """Whether the stack carries its plan inside compose.yaml, as one for a remote engine does."""
    try:
        return b"plan-json" in (read_regular(folder / "compose.yaml") or b"")
    except UnreadableFile:
        return False


def _changed_on_server(server: Server, engine: Engine, report: Mapping[str, Any]) -> Iterator[ChangedFile]:
    """Each reported file, in the package as the first patch found it and in the overlay as the last left it."""
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for row in (row for patch in report["patches"] for row in patch["files"]):
        launcher.check_path(row["path"])
        if row["sha256_before"]:
            before.setdefault(row["path"], row["sha256_before"])
        if row["sha256_after"] and row["state"] == "applies":
            after[row["path"]] = row["sha256_after"]
    package, overlay = report["vllm"]["path"], report["overlay"]
    for path, sha256 in before.items():
        found = engine.read(server, f"{package}/{path.partition('/')[2]}")
        yield from _differs(path, "package", found, sha256)
    for path, sha256 in after.items() if overlay else ():
        yield from _differs(path, "overlay", engine.read(server, f"{overlay}/{path}"), sha256)


def _differs(path: str, place: str, found: bytes | None, sha256: str) -> Iterator[ChangedFile]:
    if found is None:
        yield ChangedFile(path=path, place=place, detail="it is gone")
    elif launcher.sha256(found) != sha256:
        detail = f"it was changed since the start: sha256 {launcher.sha256(found)[:12]}…, reported {sha256[:12]}…"
        yield ChangedFile(path=path, place=place, detail=detail)


def verdicts(report: Mapping[str, Any], changed_files: tuple[ChangedFile, ...]) -> tuple[Verdict, ...]:
    """What the running server has of each patch, by its report, unless a file was changed since.

    Raises EnvironmentMissing for a report that is not the launcher's.
    """
    changed = {one.path: f"{one.place}: {one.detail}" for one in changed_files if one.place != "stack"}
    plan = next((str(one) for one in changed_files if one.place == "stack"), "")
    try:
        return tuple(_verdict(row, changed, plan) for row in report["patches"])
    except (KeyError, TypeError, AttributeError):
        raise EnvironmentMissing(f"the launcher's report cannot be used: {plan or 'it is another schema'}") from None


def _verdict(row: Mapping[str, Any], changed: Mapping[str, str], plan: str) -> Verdict:
    files = tuple(_file_verdict(file, changed) for file in row["files"])
    state = "applied" if row["state"] in ("applies", "drifted") else row["state"]
    if any(file.path in changed for file in files):
        state = "conflict"
    if plan:
        state = "invalid"
        files = (*files, FileVerdict(path="plan.json", state="invalid", line=None, detail=plan))
    return Verdict(patch=row["patch"], state=state, variant=row["variant"], files=files)


def _file_verdict(file: Mapping[str, Any], changed: Mapping[str, str]) -> FileVerdict:
    as_started = "applied" if file["state"] == "applies" else file["state"]
    tampered = changed.get(file["path"])
    return FileVerdict(
        path=file["path"],
        state="conflict" if tampered else as_started,
        line=file["line"],
        detail=tampered or file["detail"],
        before=file["sha256_before"],
        after=file["sha256_after"],
    )
