"""What an engine and a readiness check need to know of one stack: plain data, decided elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

EngineName = Literal["docker", "process"]


@dataclass(frozen=True, kw_only=True)
class Server:
    """One rendered stack, as it is started, watched and stopped."""

    name: str
    """Profile name; also the name of the stack's folder under the state folder."""
    folder: Path
    """The rendered stack: compose.yaml, plan.json, launch.py and the rest."""
    port: int
    bind: str = "127.0.0.1"
    model: str
    """The name the server answers to (`--served-model-name`, else the target)."""
    speculates: bool
    live_k: int | None = None
    """The k that it starts with, if k can be changed while it runs; None for any other server."""
    needs_api_key: bool = False
    """Whether requests carry the key of the environment variable VLLM_API_KEY."""
    gpus: bool = False
    image: str | None = None
    """The docker engine's image; None for the process engine."""
    python: Path | None = None
    """The process engine's interpreter, whose site-packages hold vllm; None for docker."""
    command: tuple[str, ...] = ()
    """The process engine's `vllm serve …` argv, without `--speculative-config`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The process engine's additions to the environment: the profile's `env` and the cache folders."""
    stop_grace_s: float = 30.0

    @property
    def project(self) -> str:
        """The Compose project name."""
        return f"gemmaspec-{self.name}"

    @property
    def base_url(self) -> str:
        """Where this machine reaches the server."""
        host = "127.0.0.1" if self.bind in ("0.0.0.0", "::") else self.bind  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def run_dir(self) -> Path:
        """The process engine's run folder: overlay, report, lock, log."""
        return self.folder / "run"


@dataclass(frozen=True, kw_only=True)
class State:
    """What an engine sees of a server right now."""

    status: Literal["absent", "running", "exited", "restarting", "unknown"]
    """`unknown` where nobody can tell: `detail` says why, and `hint` the command that may help."""
    exit_code: int | None = None
    restarts: int = 0
    detail: str = ""
    """Container id and health, or pid: for a person to read."""
    hint: str | None = None
    ended: float | None = None
    """Seconds since 1970 at which it exited; None while it runs, or where nobody knows."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What really runs, as it was started."""

    command: tuple[str, ...]
    """The argv of the container or process; no API key in it."""
    image: str | None = None
    """The id of the container's image."""


class Engine(Protocol):
    """Starts and inspects; decides nothing about profiles or readiness."""

    name: EngineName

    @property
    def remote(self) -> bool:
        """Whether servers run on another machine, where folders and ports are not this one's."""

    def start_command(self, server: Server) -> tuple[str, ...]:
        """The argv that `start` runs: for a person to read."""

    def preflight(self, server: Server, *, port_is_free: bool = False) -> None:
        """Raise EnvironmentMissing when the server could not start here, saying what is missing.

        A server of this name may still run. `port_is_free`: it holds the port, and will have been stopped by then.
        """

    def start(self, server: Server) -> None:
        """Start the server and return; it outlives this process. What raises leaves nothing of this start running."""

    def stop(self, server: Server) -> bool:
        """Stop it and everything it started; True when something was running."""

    def state(self, server: Server) -> State:
        """Look, touch nothing."""

    def ensure_answers(self, server: Server) -> None:
        """Raise StartFailed unless the server that was started lives, and nobody else answers on its port."""

    def runs(self, server: Server) -> Runs | None:
        """What the running server was started as; None when it does not run."""

    def logs(self, server: Server, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """The server's own output since its last start, line by line, without line ends."""

    def report(self, server: Server) -> dict[str, Any] | None:
        """The launcher's report of the running server; None when there is none."""

    def read(self, server: Server, path: str) -> bytes | None:
        """A file as the running server sees it, by its absolute path there; None when there is none.

        At most engine.report.MAX_REPORT + 1 bytes of it.
        """
