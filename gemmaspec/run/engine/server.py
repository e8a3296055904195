"""The facts about one stack that an engine and a readiness check need: plain data, decided elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.engines import EngineName
from gemmaspec.core.server_state import GONE, LIVES, Seen

__all__ = ["Engine", "EngineName", "Node", "Runs", "Server", "State", "server_at"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine of a server that runs on several; its place among them is its rank."""

    host: str
    """Its name in fleet.yaml."""
    docker: str
    """A docker context, or the URL of a daemon."""

    @property
    def compose_file(self) -> str:
        """The name of its compose file in the stack's folder."""
        return f"compose.{self.host}.yaml"


@dataclass(frozen=True, kw_only=True)
class Server:
    """One rendered stack to start, watch and stop."""

    name: str
    """Profile name; also the name of the stack's folder under the state folder."""
    folder: Path
    """The rendered stack: compose.yaml, plan.json, launch.py and the rest."""
    port: int
    bind: str = "127.0.0.1"
    model: str
    """The model's name in requests (`--served-model-name`, else the target)."""
    speculates: bool
    looks_up: bool = False
    """Whether drafts are looked up in the text (ngram, suffix): a text that repeats nothing has none."""
    watched: bool = False
    """Whether a watch runs in a container of its own."""
    needs_api_key: bool = False
    """Whether requests need the key in the environment variable VLLM_API_KEY."""
    gpus: bool = False
    image: str | None = None
    """The docker engine's image; None for the process engine."""
    python: Path | None = None
    """The process engine's interpreter, whose site-packages contain vllm; None for docker."""
    command: tuple[str, ...] = ()
    """The process engine's `vllm serve …` argv, without `--speculative-config`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The process engine's additions to the environment: the profile's `env` and the cache folders."""
    stop_grace_s: float = 30.0
    copied: bool = False
    """Whether the stack's files are copied into a volume, because the daemon cannot mount this machine's folders."""
    compose_file: str = "compose.yaml"
    """The docker engine's file in the stack's folder."""
    nodes: tuple[Node, ...] = ()
    """The machines of a server that runs on several, by rank; empty for one machine."""
    reached_at: str | None = None
    """The name or address by which this machine reaches the server, where `bind` does not say it."""

    @property
    def project(self) -> str:
        """The Compose project name."""
        return f"gemmaspec-{self.name}"

    @property
    def base_url(self) -> str:
        """The server's URL from this machine."""
        everywhere = self.bind in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
        if everywhere:
            host = self.reached_at or "127.0.0.1"
        else:
            host = self.bind
        if ":" in host:
            return f"http://[{host}]:{self.port}"
        return f"http://{host}:{self.port}"

    @property
    def run_dir(self) -> Path:
        """The process engine's run folder: overlay, report, lock, log."""
        return self.folder / "run"


@dataclass(frozen=True, kw_only=True)
class State:
    """The current state of a server, as its engine sees it."""

    status: Seen
    """`unknown` if it cannot be determined; then `detail` says why, and `hint` is a command that may help."""
    exit_code: int | None = None
    restarts: int = 0
    detail: str = ""
    """Container id and health, or pid, for a person to read."""
    hint: str | None = None
    unhealthy: bool = False
    """Whether it runs and its own health check has failed several times in a row."""
    ended: float | None = None
    """Seconds since 1970 at which it exited; None while it runs, or if unknown."""
    starved: str = ""
    """That the kernel has killed a process since it started because memory ran out, in words."""
    host: str = ""
    """Of a server on several machines: the host whose rank this state is about, such as the one that ended first, or
    the first that is unhealthy."""

    @property
    def lives(self) -> bool:
        """Whether its process or container is there, ready or not."""
        return self.status in LIVES

    @property
    def gone(self) -> bool:
        """Whether it is known not to run."""
        return self.status in GONE

    @property
    def left(self) -> bool:
        """Whether something of a server that has exited is still there: a container, or processes that still end."""
        return self.status == "exited" and bool(self.detail)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The running command and image, as started."""

    command: tuple[str, ...]
    """The argv of the container or process, without API keys."""
    image: str | None = None
    """The id of the container's image."""


class Engine(Protocol):
    """Starts and inspects servers; decides nothing about profiles or readiness."""

    name: EngineName

    @property
    def remote(self) -> bool:
        """Whether servers run on another machine, with its own folders and ports."""

    def data_root(self) -> Path | None:
        """Return the folder of images here; None if the engine has none, or none that is visible from here."""

    def start_command(self, server: Server) -> tuple[str, ...]:
        """Return the argv that `start` runs, for a person to read."""

    def preflight(self, server: Server, *, port_is_free: bool = False) -> None:
        """Raise EnvironmentMissing, with what is missing, if the server could not start here.

        `port_is_free`: do not check the port, because a running server of this name holds it and will be stopped first.
        """

    def start(self, server: Server) -> None:
        """Start the server, which outlives this process, and return. After an exception nothing of this start runs."""

    def stop(self, server: Server) -> bool:
        """Stop the server and everything that it started; return True if something was running."""

    def state(self, server: Server) -> State:
        """Return the server's state without changing anything."""

    def ensure_answers(self, server: Server) -> None:
        """Raise StartFailed unless the started server lives and no other server answers on its port."""

    def runs(self, server: Server) -> Runs | None:
        """Return the command and image of the running server; None if it does not run."""

    def logs(self, server: Server, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yield the server's own output since its last start, line by line, without line ends."""

    def report(self, server: Server) -> dict[str, Any] | None:
        """Return the launcher's report of the running server; None if it does not exist."""

    def read(self, server: Server, path: str, *, service: str = "vllm") -> bytes | None:
        """Return a file as the running server sees it, by its absolute path there; None if it is missing.

        Only the first engine.report.MAX_REPORT + 1 bytes are read. `service` names another container of the stack,
        which may run while the server does not.
        """

    def read_all(self, server: Server, paths: Sequence[str], *, service: str = "vllm") -> Mapping[str, bytes]:
        """Return these files by their paths as `read` does, in one request; those that are missing are left out."""


def server_at(url: str, *, option: str, name: str) -> Server:
    """Return the server at an address; `name` stands for it in messages. Raises UsageError that names the option."""
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError:
        raise UsageError(f"{option} {url!r} is not an address like http://127.0.0.1:8000") from None
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/", "/v1", "/v1/") or parts.username:
        raise UsageError(f"{option} {url!r} is not an address like http://127.0.0.1:8000")
    return Server(name=name, folder=Path(os.devnull), port=port, bind=parts.hostname, model="", speculates=False)
