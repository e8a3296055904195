"""`up B --instead-of A`: stop one server and start another in its place, and go back if the other fails."""

from __future__ import annotations

from gemmaspec.deploy.kept import stacks
from gemmaspec.deploy.kept.models import check_access, check_folder
from gemmaspec.deploy.start import down, up
from gemmaspec.deploy.start.decide import LIVE, Start, UpRequest, decide
from gemmaspec.deploy.start.observe import load_request, observe
from gemmaspec.deploy.start.starting import Running, StartProgress
from gemmaspec.engine.server import Engine
from gemmaspec.errors import GemmaspecError, UsageError
from gemmaspec.runtime.managed import ensure_runtime


def up_instead(before: str, request: UpRequest, progress: StartProgress) -> Running:
    """Stop the stack `before`, and start the requested one; the first one runs again if the other does not answer.

    What the other one needs (image, runtime, folders, access to models) is in place before anything is stopped. Raises
    UsageError if `before` does not run, and what `up` raises; then the error says whether `before` runs again.
    """
    started = stacks.find(before)
    loaded = load_request(request)
    name = loaded.profile.name
    if name == before:
        raise UsageError(f"{before} cannot be started instead of itself", hint=f"gemmaspec restart {before}")
    if stacks.look(started).status not in LIVE:
        raise UsageError(f"{before} is not running, so there is nothing to replace", hint=f"gemmaspec up {name}")
    observed, engine = observe(request, loaded, progress.note)
    _prepare(decide(request, observed), engine, progress)
    back = up.again(before, timeout_s=max(request.timeout_s, UpRequest.timeout_s))
    progress.note(f"stopping {before}")
    try:
        down.down(before, progress.note)
        return up.up(request, progress)
    except BaseException as error:
        progress.note(f"{name} does not run; starting {before} again")
        try:
            down.down(before)  # its end may have begun
            up.up(back, progress)
        except GemmaspecError as again:
            outlook = f"{before} did not start again either: {again.message}"
        else:
            outlook = f"{before} runs again as before."
        if isinstance(error, GemmaspecError):
            raise error.amended(f"{error.message}\n{outlook}") from None
        progress.note(outlook)
        raise


def _prepare(start: Start, engine: Engine, progress: StartProgress) -> None:
    """Fetch and check what the start needs, while the other server still runs and may hold the port."""
    for one in start.folders:
        check_folder(one)
    check_access(start.ask_access, note=progress.note)
    if start.runtime:
        ensure_runtime(start.runtime, progress=progress.note)
    engine.preflight(start.server, port_is_free=True)
