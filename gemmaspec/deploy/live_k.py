"""`k`: how many tokens a running server drafts, shown and changed without a restart."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gemmaspec.deploy import owner, stacks
from gemmaspec.deploy.stacks import Started
from gemmaspec.engine.server import Engine, Server
from gemmaspec.errors import EnvironmentMissing, GemmaspecError, TimedOut, UsageError
from gemmaspec.files import UnreadableFile, read_regular, unwritable, write_whole
from gemmaspec.launcher import LIVE_K_CONTROL
from gemmaspec.live.live_k import MOST_BYTES, InUse, control_text, parse_in_use, wished_k
from gemmaspec.profile.engines import uses_image
from gemmaspec.ready.first_request import api_key_for
from gemmaspec.ready.http import exchange
from gemmaspec.stack.compose import RUN_DIR

CONFIRM_S: Final = 20.0
"""How long a server may take to confirm: one step, which a long prompt makes long."""
_NUDGE_AFTER_S: Final = 0.5
"""A server that works takes a step within this; after it, one token is asked for so that an idle one takes a step."""
_POLL_S: Final = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changed:
    """A k that the server has confirmed."""

    name: str
    before: int
    now: InUse
    seconds: float
    """From the request to the confirmation."""


@dataclasses.dataclass(kw_only=True)
class Reader:
    """The k of one stack, again and again: the server is asked anew only after something was asked of it."""

    _seen: float | None = None
    _last: InUse | None = None

    def read(self, started: Started) -> InUse | None:
        """Return the k in use; None where it is fixed or not known."""
        if started.server.live_k is None:
            return None
        written = _modified(_control(started.server))
        if self._last is None or written != self._seen:
            self._last = in_use(started.server, stacks.engine_of(started))
            asked = _asked(started.server)
            self._seen = written if self._last and self._last.id == asked else None
        return self._last


def show(name: str) -> InUse:
    """Return the k that a running stack uses.

    Raises UsageError for one that was started without live_k, EnvironmentMissing where it does not run or does not say.
    """
    _, _, found = _running(name)
    return found


def change(name: str, wish: str, note: Callable[[str], None], *, timeout_s: float | None = None) -> Changed:
    """Have a running stack draft `wish` tokens a step (off, auto or a number) and return once it has confirmed.

    A server that does not confirm is told to keep the k that it has. Raises what `show` raises, UsageError for a
    k that it cannot have, TimedOut.
    """
    with owner.owned(name, "k", note=note):
        started, engine, before = _running(name)
        k = wished_k(wish, name, started_k=before.started_k)
        began, timeout_s = time.monotonic(), CONFIRM_S if timeout_s is None else timeout_s
        try:
            now = _ask(started.server, engine, k, timeout_s=timeout_s)
        except BaseException:
            _request(started.server, before.k)
            raise
        if now is None:
            _request(started.server, before.k)
            raise TimedOut(
                f"{name} did not take k={k} within {timeout_s:.0f} s, because it took no step; k stays {before.k}",
                hint=f"gemmaspec logs {name}",
            )
        return Changed(name=name, before=before.k, now=now, seconds=time.monotonic() - began)


def in_use(server: Server, engine: Engine) -> InUse | None:
    """Return the k that a server uses; None for one without live_k, and where it does not say."""
    if server.live_k is None:
        return None
    folder = RUN_DIR if uses_image(engine.name) else str(server.run_dir.absolute())
    with contextlib.suppress(GemmaspecError):
        return parse_in_use(engine.read(server, f"{folder}/{LIVE_K_CONTROL}"))
    return None


def forget(server: Server) -> None:
    """Remove what was asked of the server before: a start begins with the profile's k."""
    file = _control(server)
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(file, error) from None


def expected(started: Started, engine: Engine) -> Server:
    """Return the server as its answer is judged: one that has been ready, and whose k is 0 now, is not to draft."""
    found = in_use(started.server, engine) if started.outcome == "ready" else None
    if found and found.k == 0:
        return dataclasses.replace(started.server, speculates=False)
    return started.server


def _running(name: str) -> tuple[Started, Engine, InUse]:
    started = stacks.find(name)
    _refuse_fixed(started)
    engine = stacks.engine_of(started)
    state = stacks.look(started, engine)
    if state.status == "unknown":
        raise EnvironmentMissing(f"cannot tell whether {name} runs: {state.detail}", hint=state.hint)
    if state.status != "running":
        raise EnvironmentMissing(f"{name} is not running", hint=f"gemmaspec up {started.profile}")
    if engine.remote:
        raise EnvironmentMissing(
            f"the Docker engine of {name} is on another machine: its k cannot be changed from here",
            hint=f"gemmaspec restart {name} --set speculative.num_speculative_tokens=K",
        )
    found = in_use(started.server, engine)
    if found is None:
        raise EnvironmentMissing(
            f"{name} does not say which k it uses: it is still starting, or cannot write into its run folder",
            hint=f"gemmaspec wait {name}",
        )
    return started, engine, found


def _refuse_fixed(started: Started) -> None:
    name = started.server.name
    if not started.server.speculates:
        raise UsageError(f"{name} runs without speculation, and has no k", hint=f"gemmaspec restart {name}")
    if started.server.live_k is None:
        raise UsageError(
            f"{name} was started without live_k: its k cannot change while it runs",
            hint=f"gemmaspec restart {name} --set speculative.live_k=true",
        )


def _ask(server: Server, engine: Engine, k: int, *, timeout_s: float) -> InUse | None:
    """Ask for a k, and return it as confirmed; None after `timeout_s`."""
    request = _request(server, k)
    deadline = time.monotonic() + timeout_s
    nudge_at = time.monotonic() + min(_NUDGE_AFTER_S, timeout_s)
    while True:
        found = in_use(server, engine)
        if found and found.id == request:
            return found
        now = time.monotonic()
        if now >= deadline:
            return None
        if now >= nudge_at:
            _nudge(server, timeout_s=deadline - now)
            nudge_at = deadline
        time.sleep(_POLL_S)


def _request(server: Server, k: int) -> str:
    request = secrets.token_hex(8)
    write_whole(_control(server), control_text(k, request))
    return request


def _nudge(server: Server, *, timeout_s: float) -> None:
    """Ask for one token: a server without requests takes no step, and looks at no file."""
    body = {"model": server.model, "prompt": "1", "max_tokens": 1}
    with contextlib.suppress(GemmaspecError):
        exchange(server, "/v1/completions", body=body, timeout_s=timeout_s, api_key=api_key_for(server))


def _asked(server: Server) -> str:
    """Return the id of the last request; "" when there is none."""
    with contextlib.suppress(UnreadableFile, ValueError, AttributeError):
        return str(json.loads(read_regular(_control(server), limit=MOST_BYTES) or b"{}").get("id", ""))
    return ""


def _modified(file: Path) -> float:
    with contextlib.suppress(OSError):
        return file.lstat().st_mtime
    return 0.0


def _control(server: Server) -> Path:
    """Return the file that the server reads; a container sees the stack's folder, and cannot write there."""
    return server.folder / LIVE_K_CONTROL
