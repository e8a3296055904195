"""`up B --instead-of A`: stop one server and start another in its place, and go back if the other fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from gemmaspec.core.errors import GemmaspecError, UsageError
from gemmaspec.core.profile.load import Loaded
from gemmaspec.run.engine.server import Engine
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.models import check_access, check_folder
from gemmaspec.run.kept.stack_lock import StartProgress
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.runtime.managed import ensure_runtime
from gemmaspec.serve import down, up
from gemmaspec.serve.decide import Start, UpRequest, decide
from gemmaspec.serve.dry_run import DryRun, dry_run
from gemmaspec.serve.observe import load_request, observe
from gemmaspec.serve.starting import Running


def up_instead(before: str, request: UpRequest, progress: StartProgress, loaded: Loaded | None = None) -> Running:
    """Stop the stack `before`, and start the requested one; the first one runs again if the other does not answer.

    What the other one needs is fetched first. Raises UsageError if `before` does not run, and what `up` raises, which
    then says whether `before` runs again.
    """
    loaded = load_request(request, loaded)
    name = loaded.profile.name
    _running(before, name)
    observed, engine = observe(request, loaded, progress.note)
    start = decide(request, observed)
    _prepare(start, engine, progress)
    back = up.again(before, timeout_s=max(request.timeout_s, UpRequest.timeout_s))
    progress.note(f"stopping {before}")
    try:
        down.down(before, progress.note)
        return up.up(request, progress, loaded)
    except BaseException as error:
        live = [stack.server.name for stack in stacks.started_stacks() if stacks.look(stack).lives]
        if name in live and not (start.joins or start.replaces):  # it has answered, or cannot be stopped
            outlook = f"{name} runs, and {before} stays stopped."
        else:
            progress.note(f"{name} does not run; starting {before} again")
            try:
                down.down(before)  # its end may have begun
                up.up(back, progress)
                outlook = f"{before} runs again as before."
            except GemmaspecError as again:
                outlook = f"{before} did not start again either: {again.message}"
        if isinstance(error, GemmaspecError):
            raise error.amended(f"{error.message}\n{outlook}") from None
        progress.note(outlook)
        raise


def dry_run_instead(
    before: str, request: UpRequest, note: Callable[[str], None], loaded: Loaded | None = None
) -> DryRun:
    """Return what `up_instead` would do. Changes nothing. Raises as it does, and as `dry_run`."""
    loaded = load_request(request, loaded)
    started = _running(before, loaded.profile.name)
    return dataclasses.replace(dry_run(request, note, loaded), instead_of=started)


def _running(before: str, name: str) -> Started:
    """Return the record of the server that `name` is to replace. Raises UsageError if it cannot."""
    started = stacks.find(before)
    if name == before:
        raise UsageError(f"{before} cannot be started instead of itself", hint=f"gemmaspec restart {before}")
    if not stacks.look(started).lives:
        raise UsageError(f"{before} is not running, so there is nothing to replace", hint=f"gemmaspec up {name}")
    return started


def _prepare(start: Start, engine: Engine, progress: StartProgress) -> None:
    """Fetch and check what the start needs, while the other server still runs and may hold the port."""
    for folder in start.folders:
        check_folder(folder)
    check_access(start.ask_access, note=progress.note)
    if start.runtime:
        ensure_runtime(start.runtime, progress=progress.note)
    engine.preflight(start.server, port_is_free=True)
