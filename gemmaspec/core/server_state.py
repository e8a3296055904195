"""The state of a server: one of five, whatever words are stored, seen by an engine, or printed for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal


class ServerState(StrEnum):
    """The five states of a server, of a router, and of a pod; `MEANINGS` has a sentence for each."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    EXITED = "exited"


Word = ServerState | Literal["degraded", "unknown"]
"""What is printed: the state, or the two words for a state that is not enough. `degraded` is a ready server with a
fault that its users notice; `unknown` is a server of which no state can be told."""

Recorded = Literal["starting", "ready", "failed", "interrupted", "stopping", "stopped"]
"""What the last command wrote down; failed and interrupted: its start was undone, by itself or by Ctrl-C, SIGTERM or
`down`.

stopping: `down` ends it, or was interrupted while it did. It is written before the first signal, so that nobody takes
what follows for a death.
"""

Seen = Literal["absent", "running", "exited", "restarting", "unknown"]
"""What an engine sees of a server's process or container."""

LIVES: Final = frozenset[Seen]({"running", "restarting"})
GONE: Final = frozenset[Seen]({"exited", "absent"})


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What a printed word says."""

    sentence: str
    exit_code: int
    """Of `status NAME`."""


MEANINGS: Final[Mapping[Word, Meaning]] = {
    ServerState.STARTING: Meaning(sentence="it starts, and has not drafted and answered yet", exit_code=0),
    ServerState.READY: Meaning(sentence="it has answered, and answers on /health", exit_code=0),
    "degraded": Meaning(
        sentence="it is ready, and drafts without CUDA graphs; or a router leaves out a replica that serves",
        exit_code=5,
    ),
    ServerState.STOPPING: Meaning(sentence="`down` has begun to end it, and something of it still runs", exit_code=1),
    ServerState.STOPPED: Meaning(sentence="`down`, or Ctrl-C during its start, has ended it", exit_code=1),
    ServerState.EXITED: Meaning(sentence="it ended by itself, or its start failed", exit_code=1),
    "unknown": Meaning(
        sentence="its engine does not answer, its record is damaged, or it runs and gives no answer", exit_code=4
    ),
}
"""Every printed word, in the order of a server's life."""

_BY_RECORD: Final[Mapping[Recorded, tuple[ServerState, ServerState]]] = {
    "starting": (ServerState.STARTING, ServerState.EXITED),
    "ready": (ServerState.READY, ServerState.EXITED),
    "failed": (ServerState.STARTING, ServerState.EXITED),
    "interrupted": (ServerState.STARTING, ServerState.STOPPED),
    "stopping": (ServerState.STOPPING, ServerState.STOPPED),
    "stopped": (ServerState.STARTING, ServerState.STOPPED),
}
"""What was written down → the state while a process lives, and the state once none does.

A server that lives although its start was undone, or although it was stopped, was started again by other means
(`docker compose up`): it starts, and is not ready before somebody has probed it.
"""

POD_PHASES: Final[Mapping[str, Word]] = {
    "Pending": ServerState.STARTING,
    "Running": ServerState.STARTING,
    "Succeeded": ServerState.EXITED,
    "Failed": ServerState.EXITED,
    "Unknown": "unknown",
}
"""The phases of a pod (Kubernetes 1.3x, "Pod Lifecycle") that is not ready; one that is ready is READY."""


def state_of(recorded: Recorded, seen: Seen, *, left: bool = False) -> ServerState | None:
    """Return the state of a server by its record and what its engine sees; None if the engine cannot tell.

    `left` says that something of an exited server is still there: a container, or processes that have not ended.
    """
    if seen == "unknown":
        return None
    living, gone = _BY_RECORD[recorded]
    still_ends = recorded == "stopping" and left
    if seen in LIVES or still_ends:
        return living
    return gone
