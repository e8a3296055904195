"""Ctrl-C: report whether the server keeps running."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gemmaspec.cli import output
from gemmaspec.errors import Interrupted


@contextlib.contextmanager
def told_on_interrupt(name: str) -> Iterator[None]:
    """Turn Ctrl-C in the body into Interrupted, which says whether the server of this stack keeps running."""
    try:
        yield
    except KeyboardInterrupt:
        from gemmaspec.deploy.views.status import after_interrupt

        raise Interrupted(after_interrupt(name, output.progress)) from None


@contextlib.contextmanager
def told_of_replicas(name: str) -> Iterator[None]:
    """Turn Ctrl-C in the body into Interrupted, which says where to see what serves now."""
    try:
        yield
    except KeyboardInterrupt:
        output.progress(f"gemmaspec status {name}    # or: gemmaspec down {name}")
        raise Interrupted(f"interrupted; the other replicas of {name} keep serving") from None
