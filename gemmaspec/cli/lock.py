"""`gemmaspec lock`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmaspec.cli import options, output
from gemmaspec.cli.text import page

if TYPE_CHECKING:
    from gemmaspec.core.lock.document import Lock
    from gemmaspec.serve.write_lock import WrittenLock


def lock(profile: options.Profile, engine: options.Engine = None, json: options.Json = False) -> None:
    """Record exactly what a profile runs: image digest, model revisions, versions, plan.

    Writes NAME.lock next to the profile, or into your own profile folder for a shipped profile. `up --locked` then
    refuses to run anything else.
    """
    from gemmaspec.serve.write_lock import lock_profile

    written = lock_profile(profile, options.engine_name(engine), output.progress)
    document = {
        "ok": True,
        "file": written.file,
        "lock": written.lock.model_dump(by_alias=True),
        "moved": written.moved,
    }
    page.answer(document, _page(written), as_json=json)


def _page(written: WrittenLock) -> Iterator[str]:
    """Yield what moved since the lock before, and what is pinned now."""
    yield from map(str, written.moved)
    state = "already locked; nothing has changed"
    if written.first:
        state = "locked"
    elif written.moved:
        state = "locked again"
    title = f"{written.lock.profile} is {state}: {written.file}"
    yield from page.lines(title, _rows(written.lock), names=page.NAMES)


def _rows(lock: Lock) -> Iterator[page.Row]:
    yield "engine", lock.engine
    if lock.image:
        yield "image", lock.image.ref
    if lock.versions:
        versions = lock.versions
        yield "versions", f"vllm {versions.vllm}, torch {versions.torch}, transformers {versions.transformers}"
