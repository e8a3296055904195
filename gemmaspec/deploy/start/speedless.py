"""A start without the patches for speed, after one with them has failed; remembered until lock or profile change."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec import records
from gemmaspec.deploy.kept import stacks
from gemmaspec.deploy.kept.lockfile import lock_file
from gemmaspec.deploy.kept.stacks import Started, stack_folder
from gemmaspec.deploy.start.decide import UpRequest
from gemmaspec.engine.server import Engine, Server
from gemmaspec.errors import GemmaspecError, StartFailed, UsageError
from gemmaspec.files import UnreadableFile, read_regular
from gemmaspec.profile.load import Loaded, load_profile, replica_of
from gemmaspec.profile.runs import settings_digest
from gemmaspec.ready.failures import find_cause
from gemmaspec.ready.known_failures import ENVIRONMENT
from gemmaspec.ready.logline import message_of

FILE: Final = "speed.json"
OFF: Final = "patches.speed=off"
_LINES: Final = 4000
_APPLIED: Final = re.compile(r"gemmaspec: patch (?P<patch>[a-z0-9-]{1,80}): applies\b")
_FRAME: Final = re.compile(r'  File "[^"]{0,400}?(?P<path>vllm/[^"]{1,300}\.py)", line \d')
_OF_KERNELS: Final = re.compile(
    r"CUDA error|illegal memory|device-side assert|misaligned|triton|kernel|shared memory", re.IGNORECASE
)
"""What an error says that a changed kernel can cause, wherever it is raised: kernels run later than they are called."""


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """Why a stack runs without its patches for speed."""

    of: str
    """Digest of the profile, its lock and its plan, with which the patches failed."""
    patches: tuple[str, ...]
    """The patches that were in."""
    why: str
    at: float
    """Seconds since 1970."""

    def __str__(self) -> str:
        return f"without {', '.join(self.patches)}, because {self.why}"


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """The patches for speed of a start that failed."""

    patches: tuple[str, ...]
    named: tuple[str, ...]
    """Those whose code is in a traceback of the log."""

    def __str__(self) -> str:
        if self.named:
            return f"its log has a traceback through code of {', '.join(self.named)}"
        names = ", ".join(self.patches)
        return f"{names} {'was' if len(self.patches) == 1 else 'were'} in, and may be the cause"


def file_of(name: str) -> Path:
    """Return the file that says so in a stack's folder."""
    return stack_folder(name) / FILE


def remembered(loaded: Loaded) -> Fallback | None:
    """Return why a stack is started without patches for speed; None once its profile, lock or plan has changed.

    What cannot be read counts as missing: the patches are then tried again.
    """
    kept = kept_for(loaded.profile.name)
    return kept if kept and kept.of == digest_of(loaded) else None


def as_written(request: UpRequest) -> Loaded:
    """Return the requested profile or replica, whatever happened at earlier starts.

    Raises what load_profile raises, and UsageError for a profile with replicas or a replica that it does not have.
    """
    loaded = load_profile(request.profile, overrides=request.overrides, no_spec=request.no_spec)
    name, count = loaded.profile.name, loaded.profile.replicas
    if request.replica is None and count == 1:
        return loaded
    if request.replica is None:
        raise UsageError(
            f"{name} has {count} replicas, and this command works on one server",
            hint="add --set replicas=1 --set router=    # one server of this profile, on serve.port",
        )
    if count == 1 or request.replica > count:
        raise UsageError(f"{name} has no replica {request.replica} any more", hint=f"gemmaspec up {loaded.typed}")
    return replica_of(loaded, request.replica)


def why_without(started: Started) -> str:
    """Return why a stack runs without its patches for speed; "" where it has them, or was never meant to."""
    kept = kept_for(started.server.name)
    if kept is None:
        return ""
    with contextlib.suppress(GemmaspecError, UnreadableFile):
        plan = (read_regular(started.server.folder / "plan.json") or b"").decode(errors="replace")
        loaded = as_written(UpRequest.of(started.last_good_options))
        if not speed_files(plan) and loaded.profile.patches.speed != "off" and remembered(loaded):
            return str(kept)
    return ""


def kept_for(name: str) -> Fallback | None:
    """Return what is kept of a stack, whatever its profile says by now."""
    return records.kept(Fallback, file_of(name))


def remember(loaded: Loaded, patches: Sequence[str], why: str) -> None:
    """Keep that a stack runs without its patches for speed. Raises EnvironmentMissing when it cannot be written."""
    kept = Fallback(of=digest_of(loaded), patches=tuple(patches), why=why, at=stacks.now())
    records.write(file_of(loaded.profile.name), kept)


def forget(name: str) -> None:
    """Try the patches again at the next start."""
    with contextlib.suppress(OSError):
        file_of(name).unlink(missing_ok=True)


def digest_of(loaded: Loaded) -> str:
    """Return a digest of everything with which patches for speed would run again: profile, lock and plan."""
    from gemmaspec.deploy.start.resolve import plan_digest

    with contextlib.suppress(GemmaspecError):
        lock = read_regular(lock_file(loaded), follow=True) or b""
        whole = (settings_digest(loaded.profile), plan_digest(loaded.profile), hashlib.sha256(lock).hexdigest())
        return hashlib.sha256("\n".join(whole).encode()).hexdigest()
    return "unknown"


def speed_files(plan: str) -> dict[str, frozenset[str]]:
    """Return the patches for speed in the text of a plan.json, each with the files that it changes."""
    try:
        rows = [one for one in json.loads(plan)["patches"] if one.get("purpose") == "speed"]
        return {
            str(row["id"]): frozenset(str(file["path"]) for one in row["variants"] for file in one["files"])
            for row in rows
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def suspicion(files: Mapping[str, str], lines: Sequence[str], error: GemmaspecError) -> Suspicion | None:
    """Return the patches for speed that may be why a start failed; None if there are none, or something else is.

    `files` are the stack's, `lines` its log; without a log, every patch of the plan counts as applied.
    """
    planned = speed_files(files.get("plan.json", ""))
    if not planned or not isinstance(error, StartFailed) or error.exit_code == ENVIRONMENT:
        return None
    messages = [message_of(line) for line in lines]
    applied = {found["patch"] for text in messages if (found := _APPLIED.match(text))}
    inside = tuple(name for name in planned if name in applied or not lines)
    if not inside:
        return None
    seen = {found["path"] for text in messages if (found := _FRAME.match(text))}
    named = tuple(name for name in inside if planned[name] & seen)
    cause = find_cause(lines)
    if not named and cause and not cause.failure.general and not _OF_KERNELS.search(cause.message):
        return None
    return Suspicion(patches=inside, named=named)


def log_of(engine: Engine, server: Server) -> list[str]:
    """Return the end of a server's log; nothing if it cannot be read."""
    try:
        return list(engine.logs(server, tail=_LINES))
    except (GemmaspecError, OSError):
        return []


def in_report(report: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the patches for speed that a running server has."""
    rows = report.get("patches") if report else None
    found = [row for row in rows or () if isinstance(row, dict) and row.get("purpose") == "speed"]
    return tuple(sorted(str(row.get("patch")) for row in found if row.get("state") in ("applies", "applied")))
