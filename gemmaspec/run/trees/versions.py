"""The installed versions of vLLM, torch and transformers, read from their files without importing them.

Compare a running server's files with its launcher's report and its plan: name the changed files.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gemmaspec.core import launcher
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import UnreadableFile, read_regular
from gemmaspec.core.patching.decide import FileVerdict, PatchVerdict
from gemmaspec.run.engine.server import Engine, Server
from gemmaspec.run.trees.packages import Archive, candidates, find_package
from gemmaspec.run.trees.tree import LARGEST_FILE, UNKNOWN

IN: Final = ("applies", "drifted", "applied")
"""States of a patch that the server has to run."""


@dataclass(frozen=True, kw_only=True)
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
    for path, sha256 in before.items():
        content = engine.read(server, f"{package}/{path.partition('/')[2]}")
        yield from _differs(path, "package", content, sha256)
    for path, sha256 in after.items() if overlay else ():
        yield from _differs(path, "overlay", engine.read(server, f"{overlay}/{path}"), sha256)


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
    differing = {
        path: f"not attested: {process['title']} (pid {process['pid']}): {what}"
        for process in attested["processes"]
        for what in process["different"]
        for path, module in modules.items()
        if re.match(rf"{re.escape(module)}(?:\.[^:]*)?: ", what)
    }
    return differing or {path: f"not attested: {'; '.join(attested['problems'][:3])}" for path in paths}


def _verdict(row: Mapping[str, Any], changed: Mapping[str, str], plan: str) -> PatchVerdict:
    files = tuple(_file_verdict(file, changed) for file in row["files"])
    state = "applied" if row["state"] in ("applies", "drifted") else row["state"]
    if any(file.path in changed for file in files):
        state = "conflict"
    if plan:
        state = "invalid"
        files = (*files, FileVerdict(path="plan.json", state="invalid", line=None, detail=plan))
    return PatchVerdict(patch=row["patch"], state=state, variant=row["variant"], files=files)


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


_VERSION: Final = re.compile(r"[0-9A-Za-z.+!_-]{1,64}")
_STATED: Final = re.compile(rb"^__version__\s*=\s*[\"'](" + _VERSION.pattern.encode() + rb")[\"']", re.MULTILINE)
_LOCATE: Final = """\
import importlib.util, json, sys
del sys.path[0]
found = {name: importlib.util.find_spec(name) for name in ("vllm", "torch", "transformers")}
print(json.dumps({name: spec.origin if spec else None for name, spec in found.items()}))
"""
"""A script for the interpreter that would run vLLM. It finds the packages without importing them."""
_PATIENCE_S: Final = 30
_FILES: Final = {"torch": "torch/version.py", "transformers": "transformers/__init__.py"}


def image_versions(ref: str, *, python: str = "") -> dict[str, str]:
    """Return the versions of `vllm`, `torch` and `transformers` in a local image; `unknown` if not stated.

    `python` is the interpreter that would run vLLM, if known. Raise EnvironmentMissing without a daemon, for a missing
    image, and for an image without vllm.
    """
    from gemmaspec.run.engine import endpoint  # Docker's SDK is slow to import
    from gemmaspec.run.trees.image import answering, looking_into

    where = endpoint.find()
    with endpoint.client(where) as client, answering(where, ref), looking_into(client, ref) as archive:
        config = client.images.get(ref).attrs.get("Config") or {}
        return _versions(list(candidates(config, python)), archive, f"the image {ref}")


def interpreter_versions(python: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the versions for a local interpreter. Raise EnvironmentMissing if it has no vllm.

    The interpreter itself locates the packages, as for the launcher, so that .pth files and the PYTHONPATH of
    `environment` count. If it cannot run, its folders are searched.
    """
    origins = _located(python, environment or {})
    if origins is None:
        return _versions(list(_beside(python)), _on_disk, str(python))
    if "vllm" not in origins:
        raise EnvironmentMissing(
            f"{python} has no vllm", hint="set runtime.python to the interpreter that has vllm, or remove it"
        )
    package = origins["vllm"].parent
    files = {"torch": "version.py", "transformers": "__init__.py"}
    stated = {name: _stated_in(origins[name].parent / file) for name, file in files.items() if name in origins}
    unknown = dict.fromkeys(files, UNKNOWN)
    return {"vllm": _checked(launcher.vllm_version(package)), **unknown, **stated}


def _located(python: Path, environment: Mapping[str, str]) -> dict[str, Path] | None:
    """Return where an interpreter would import each package from; None if it cannot run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [str(python), "-c", _LOCATE],
            env={**kept, **environment},
            cwd="/",
            capture_output=True,
            timeout=_PATIENCE_S,
            check=True,
        )
        origins = json.loads(done.stdout.splitlines()[-1])
        return {str(name): Path(str(origin)) for name, origin in origins.items() if origin}
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, AttributeError):
        return None


def _stated_in(file: Path) -> str:
    stated = _STATED.search(_on_disk(str(file)) or b"")
    return stated[1].decode("ascii") if stated else UNKNOWN


def _checked(version: str) -> str:
    return version if _VERSION.fullmatch(version) else UNKNOWN


def _beside(python: Path) -> Iterator[str]:
    """Yield the folders of its own environment, then those of the system's Python."""
    prefix = python.parent.parent
    for folder in sorted((prefix / "lib").glob("python3*/*-packages")):
        yield f"{folder}/vllm"
    yield from candidates({}, str(python))


def _versions(folders: list[str], archive: Archive, place: str) -> dict[str, str]:
    package = find_package(folders, archive)
    if package is None:
        raise EnvironmentMissing(
            f"cannot find a vllm package in {place}",
            hint="set container.python (for an image) or runtime.python to the interpreter that has vllm",
        )
    vllm = _checked(launcher.stated_version(archive(f"{package}/_version.py") or b"") or UNKNOWN)
    # A vllm that is installed as a checkout is in another folder than its dependencies.
    sites = [str(PurePosixPath(folder).parent) for folder in dict.fromkeys([package, *folders])]
    return {"vllm": vllm, **{name: _stated(sites, path, archive) for name, path in _FILES.items()}}


def _stated(sites: Iterable[str], path: str, archive: Archive) -> str:
    for site in sites:
        if stated := _STATED.search(archive(f"{site}/{path}") or b""):
            return stated[1].decode("ascii")
    return UNKNOWN


def _on_disk(path: str) -> bytes | None:
    try:
        with Path(path).open("rb") as file:
            return file.read(LARGEST_FILE)
    except OSError:
        return None
