"""Generations: each stack that became ready is kept under a number, rendered by digest and commit, to go back to.

A generation is a folder that gets its name when it is whole, and that is never written to again: a kill or a full disk
leaves the generations that were there. One that is ready again gets the next number, so the highest ran last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.core import records
from gemmaspec.core.errors import GemmaspecError, ProfileError
from gemmaspec.core.files import make_folder, state_dir
from gemmaspec.core.lock.document import Lock, pinned, warnings
from gemmaspec.core.lock.text import MAX_CHARACTERS, lock_text, parse_lock
from gemmaspec.core.profile.load import Loaded
from gemmaspec.run.engine.server import Engine
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.stacks import RECORD, Started
from gemmaspec.run.stack.build import STACK_FILES, Stack
from gemmaspec.run.stack.folder import read_file, write_synced
from gemmaspec.serve.prepare import prepare

KEPT: Final = 5
"""Generations of one profile; a stack takes some 100 kB."""
FACTS: Final = "facts.lock"
_MOST_DIGITS: Final = 10


@dataclass(frozen=True, kw_only=True)
class KnownGood:
    """One stack that became ready, as it can be started again."""

    id: str
    """Its number, and a hash of what it is: 12-3fa9c2d1. An older gemmaspec wrote the time in place of the number:
    20261121T191955Z-3fa9c2d1."""
    started: Started
    facts: Lock
    folder: Path

    @property
    def number(self) -> int:
        """Its number, counted from 1 for each profile; 0 for one of an older gemmaspec, which has a time instead."""
        return _number(self.id)

    @property
    def key(self) -> str:
        """The hash in its id."""
        return self.id.rpartition("-")[2]

    @property
    def since(self) -> float | None:
        """Unix time at which this generation was started; the record in it keeps its first start.

        It is the time of its folder. In one of an older gemmaspec that is when it was first ready.
        """
        try:
            return self.folder.stat().st_mtime
        except OSError:  # another command has renewed or removed it
            return self.started.since

    def is_meant(self, text: str) -> bool:
        """Return whether a text names it: by number, by id or by the hash alone."""
        return text in (self.id, self.key) or (self.number > 0 and text == str(self.number))

    def files(self) -> dict[str, str]:
        """Return the stack's files."""
        return {name: read_file(self.folder / name) for name in STACK_FILES if (self.folder / name).is_file()}


def keep(
    loaded: Loaded,
    started: Started,
    engine: Engine,
    stack: Stack,
    facts: Lock | Exception,
    *,
    lock: Lock | ProfileError | None,
    note: Callable[[str], None],
) -> None:
    """Save a stack that has just become ready, and note what differs from its lock. A failure to save is only noted.

    `facts` are what it runs, or why that is not known.
    """
    try:
        if isinstance(facts, Exception):
            raise facts
        for warning in () if started.locked else warnings(lock, facts):
            note(warning)
        runs = engine.runs(started.server)
        if facts.image and runs and runs.image != facts.image.id:
            raise GemmaspecError(f"{facts.image.name} refers to another image now than at the start")
        fixed = pinned(loaded, image=facts.image, target=facts.target, draft=facts.draft)
        server, kept = started.server, stack
        if fixed.profile != loaded.profile:
            server, kept, _ = prepare(fixed, engine=engine.name, remote=engine.remote)
        same = all(kept.files.get(name) == stack.files.get(name) for name in ("plan.json", "launch.py"))
        if same:
            good = dataclasses.replace(started, server=server)
            stacks.save(dataclasses.replace(started, known_good=_store(good, kept.files, facts)))
    except (GemmaspecError, OSError, ValueError) as error:
        note(f"this stack was not saved as known good: {error}")


def known_goods(name: str) -> Sequence[KnownGood]:
    """Return the known good stacks of a profile, newest first, without incomplete folders."""
    return [good for folder in _newest_first(name) if (good := _read(folder))]


def find(started: Started) -> KnownGood | None:
    """Return the known good stack that was saved for a start, if any."""
    if started.known_good:
        goods = known_goods(started.server.name)
    else:
        goods = []
    return next((good for good in goods if good.key == started.known_good), None)


def names() -> Sequence[str]:
    """Return the names of profiles that have a known good stack."""
    folder = state_dir() / "known-good"
    if folder.is_dir():
        return sorted(entry.name for entry in folder.iterdir() if known_goods(entry.name))
    return []


def _store(started: Started, files: Mapping[str, str], facts: Lock) -> str:
    """Save it and return its key; an identical stack only becomes the newest."""
    record = records.text_of(started)
    key = _key(record, files)
    before = next((good for good in known_goods(started.server.name) if good.key == key), None)
    if before:
        renew(before, since=started.since)
    else:
        place = _folder(started.server.name) / _next_id(started.server.name, key)
        make_folder(place.parent)
        _write({**files, RECORD: record, FACTS: lock_text(facts)}, place)
        _date(place, started.since)
    _tidy(started.server.name)
    return key


def renew(good: KnownGood, *, since: float | None) -> None:
    """Make a stack that was ready again the newest, unless another command has moved or removed it.

    `since` is the Unix time of its newest start.
    """
    newest = good.folder.with_name(_next_id(good.started.server.name, good.key))
    with contextlib.suppress(OSError):
        good.folder.replace(newest)
        _date(newest, since)


def _date(folder: Path, since: float | None) -> None:
    """Note on the folder itself when its generation was started: the files in it are never written to again."""
    if since is not None:
        with contextlib.suppress(OSError):
            os.utime(folder, (since, since))


def _newest_first(name: str) -> Sequence[Path]:
    """Return the folders of all generations, whole or not; those of an older gemmaspec have a time, and come last."""
    return sorted(_folder(name).glob("[0-9]*"), key=lambda folder: (_number(folder.name), folder.name), reverse=True)


def _number(id_: str) -> int:
    """Return the number in an id; 0 if it has none."""
    number = id_.partition("-")[0]
    return int(number) if number.isdecimal() and len(number) < _MOST_DIGITS else 0


def _next_id(name: str, key: str) -> str:
    """Return the id of the next generation; a number is never used twice, even if its folder is damaged."""
    newest = next(iter(_newest_first(name)), None)
    last = _number(newest.name) if newest else 0
    return f"{last + 1}-{key}"


def _key(record: str, files: Mapping[str, str]) -> str:
    """Return a hash of what is started: files, command and environment."""
    content = json.dumps([json.loads(record)["server"], dict(files)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:8]


def _write(content: Mapping[str, str], place: Path) -> None:
    """Write and sync all files before the folder gets its name."""
    staging = Path(tempfile.mkdtemp(dir=place.parent, prefix=".new-"))
    try:
        for name, text in content.items():
            write_synced(staging / name, text)
        staging.replace(place)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _tidy(name: str) -> None:
    """Remove old stacks and leftovers of a crash."""
    too_old = [good.folder for good in known_goods(name)[KEPT:]]
    for folder in (*too_old, *_folder(name).glob(".new-*")):
        shutil.rmtree(folder, ignore_errors=True)


def _read(folder: Path) -> KnownGood | None:
    """Return a known good stack; None if one of its files has changed."""
    with contextlib.suppress(GemmaspecError):
        started = records.read(Started, folder / RECORD)
        text = read_file(folder / FACTS)[: MAX_CHARACTERS + 1]
        facts = parse_lock(text, file=str(folder / FACTS))
        if started and started.server.name == facts.profile:
            good = KnownGood(id=folder.name, started=started, facts=facts, folder=folder)
            if good.key == _key(read_file(folder / RECORD), good.files()):
                return good
            return None
    return None


def _folder(name: str) -> Path:
    return state_dir() / "known-good" / name
