"""What runs a stack, and what follows from it. Code asks for these properties, never for an engine's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

EngineName = Literal["docker", "process"]


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """The properties of an engine that plans, locks and messages depend on."""

    uses_image: bool
    """Whether the server runs in the profile's image, with folders and a health check of its own; else in a Python
    environment of this machine."""
    needs_daemon: bool
    """Whether a daemon must answer before a server can start."""
    spans_machines: bool
    """Whether it can run one server on several machines."""
    file: str | None
    """The file that only its stacks have in their folder."""


ENGINES: Final[Mapping[EngineName, EngineKind]] = {
    "docker": EngineKind(uses_image=True, needs_daemon=True, spans_machines=True, file="compose.yaml"),
    "process": EngineKind(uses_image=False, needs_daemon=False, spans_machines=False, file=None),
}


def uses_image(engine: EngineName) -> bool:
    """Return whether servers of an engine run in the profile's image."""
    return ENGINES[engine].uses_image


def other_engines(engine: EngineName) -> tuple[EngineName, ...]:
    """Return the engines to name in place of one."""
    return tuple(name for name in ENGINES if name != engine)


def engine_of_files(present: frozenset[str]) -> EngineName:
    """Return the engine whose stack has these files; that without a file of its own if none is there."""
    names = [name for name, kind in ENGINES.items() if kind.file in present]
    if names:
        return names[0]
    return next(name for name, kind in ENGINES.items() if kind.file is None)
