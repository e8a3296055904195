"""`down`: stop a stack, whatever is left of its record."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from gemmaspec.core.errors import GemmaspecError, UsageError
from gemmaspec.core.files import UnreadableFile
from gemmaspec.core.own_folder import ensure_own
from gemmaspec.core.profile.engines import ENGINES
from gemmaspec.core.server_state import Recorded
from gemmaspec.run.engine import record
from gemmaspec.run.engine.last_start import Elsewhere
from gemmaspec.run.engine.server import Engine, Server
from gemmaspec.run.kept import claims, stacks
from gemmaspec.run.kept.stack_lock import owned
from gemmaspec.run.kept.stacks import Started


def down(name: str, note: Callable[[str], None] = lambda _: None) -> bool:
    """Stop a stack and return whether anything of it was running. Its files and caches stay.

    A start in progress is cancelled first. Raises UsageError if no stack of that name was started here,
    EnvironmentMissing if it is unknown whether it runs.
    """
    try:
        _find(name, lambda _: None)
    except stacks.Orphaned as error:
        note(f"{error.message}; stopping it")
        with owned(name, "down", note=note):
            return _end_orphan(name)
    with owned(name, "down", note=note):
        started, damaged = _find(name, note)
        engine = stacks.engine_of(started)
        ended = started.server.watched and has_ended(engine, started.server)
        with contextlib.nullcontext() if damaged else _intended(started):
            was_running = engine.stop(started.server)
        if was_running and ended:
            note(f"the server of {name} was not running, but its watch was")
        if not damaged:
            _write_down(started, "stopped")
        claims.settle(name, None)
    return was_running


def down_by_force(name: str, note: Callable[[str], None] = lambda _: None) -> bool:
    """Stop whatever runs of a stack, and return whether anything did. Needs neither its record nor a disk to write to.

    Waits for no other command. Raises GemmaspecError for what survives, is another user's, or cannot be found out.
    """
    with contextlib.ExitStack() as intent:
        with contextlib.suppress(GemmaspecError, OSError):
            ensure_own(name)
            intent.enter_context(_intended(stacks.find(name)))
        return _end_by_force(name, note)


def _end_by_force(name: str, note: Callable[[str], None]) -> bool:
    from gemmaspec.run.engine.orphans import marked

    ended = False
    for lost in marked(name, stacks.stack_folder(name)):
        ended = record.end(lost, grace_s=Server.stop_grace_s) or ended
    try:
        ensure_own(name)  # its record says which process to end
        started, _ = _find(name, note)
    except (GemmaspecError, OSError):
        if ended:
            return True
        raise
    engine = stacks.engine_of(started)
    unmarked = ENGINES[started.engine].needs_daemon  # so is a server that another user started
    if unmarked or not has_ended(engine, started.server):
        ended = engine.stop(started.server) or ended
    _write_down(started, "stopped")
    return ended


@contextlib.contextmanager
def _intended(started: Started) -> Iterator[None]:
    """Record that a server is being stopped before the first signal, so that nothing starts it again meanwhile.

    What may not be stopped from here was sent no signal, so its record becomes what it was.
    """
    _write_down(started, "stopping")
    try:
        yield
    except (record.NotPermitted, Elsewhere):
        _write_down(started, started.outcome)
        raise


def _write_down(started: Started, outcome: Recorded) -> None:
    """Record how far `down` is. It stops the server whether that can be written down or not.

    A start that failed or was interrupted stays one: why it ended is worth more than who removed what was left.
    """
    if started.was_undone:
        return
    with contextlib.suppress(GemmaspecError, OSError):
        stacks.save(dataclasses.replace(started, outcome=outcome))


def _end_orphan(name: str) -> bool:
    """Stop a server whose stack's folder was deleted; return whether it still ran."""
    lost = stacks.orphaned().get(name)
    if lost:
        ended = bool(lost) and record.end(lost, grace_s=Server.stop_grace_s)
    else:
        ended = False
    claims.settle(name, None)
    return ended


def has_ended(engine: Engine, server: Server) -> bool:
    """Return whether it is known that the server does not run; `stop` reports an engine that does not answer."""
    try:
        return engine.state(server).gone
    except GemmaspecError:
        return False


def _find(name: str, note: Callable[[str], None]) -> tuple[Started, bool]:
    """Return the record, or a minimal one in place of a damaged one, and whether it was damaged."""
    try:
        return stacks.find(name), False
    except UnreadableFile as error:
        note(f"{error.message}; stopping the server that its folder names")
        return stacks.rescue(name), True
    except UsageError as error:
        raise error.amended(error.message, hint="gemmaspec status") from None  # and not `up`, to end something
