"""A fake engine that starts nothing and writes down what it is asked to do, in order."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core.data import MODELS
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.files import state_dir
from gemmaspec.core.fleet.agree import ImageFacts
from gemmaspec.run.engine.server import Engine, EngineName, Runs, Server, State
from gemmaspec.run.ready.first_request import Answer
from gemmaspec.run.ready.wait import Ready

ANSWER = Answer(
    text="one two", reasoning="", finish_reason="stop", prompt_tokens=9, completion_tokens=2, seconds=0.1, drafts=1,
    draft_tokens=4, accepted_tokens=2, acceptance_length=3.0, tokens_per_second=20.0,
)  # fmt: skip


ABSENT = State(status="absent", detail="fake")


class FakeMachine:
    """What two fake engines run, and the transcript of what they were asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.running: dict[str, tuple[EngineName, Server]] = {}
        self.fails: dict[str, BaseException | list[BaseException]] = {}
        """What a call raises, by its word: `preflight`, `start`, `wait` or `stop`; each error once."""
        self.engines: dict[EngineName, Any] = {}
        """What a test gives in place of the fake engine of that name."""
        self.docker_is_away: GemmaspecError | None = None
        self.has_images = True
        self.ended: State | None = None
        """What an engine sees of a server that it does not run; absent where nothing is said."""
        self.seen = State(status="running", detail="fake")
        """What an engine sees of a server that it runs."""
        self.stopping: Callable[[Server], object] = lambda _: None
        """What happens in a stop before it ends the server; it may raise."""
        self.report: dict[str, Any] | None = None
        self.files: dict[str, bytes] = {}
        """What can be read of the file of each service, such as `watch`."""
        self.waited: list[float] = []
        """Seconds for which each start was waited for at the most."""
        self.log = ["a line of the log"]
        self.logs_read = 0
        self.starting: Callable[[Server], object] = lambda _: None
        """What happens in a start after it is noted; it may raise."""

    def note(self, call: str, server: Server) -> None:
        """Write a call down, and fail if it should."""
        self.calls.append(f"{call} {server.name}:{server.port}")
        self.fail(call.split()[-1])

    def fail(self, word: str) -> None:
        """Raise what this call shall raise, once."""
        errors = self.fails.get(word)
        if isinstance(errors, list) and errors:
            raise errors.pop(0)
        if isinstance(errors, BaseException):
            del self.fails[word]
            raise errors

    def engine(self, name: EngineName) -> Engine:
        """The fake engine of that name."""
        return self.engines.get(name) or FakeEngine(self, name)

    def wait_ready(self, engine: Engine, server: Server, *, timeout_s: float, **_: Any) -> Ready:
        """Be ready at once."""
        self.waited.append(timeout_s)
        self.note(f"{engine.name} wait", server)
        return Ready(answer=ANSWER, phases={}, seconds=1.0)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of both engines, of the daemon's images and of the wait; the tiny models are there."""
        shutil.copytree(MODELS, state_dir() / "tiny", dirs_exist_ok=True)
        monkeypatch.setattr("gemmaspec.run.engine.choose.engine_named", self.engine)
        monkeypatch.setattr("gemmaspec.serve.observe.image_identity", lambda _: self.has_images or None)
        monkeypatch.setattr("gemmaspec.serve.starting.wait_ready", self.wait_ready)
        monkeypatch.setattr("gemmaspec.serve.wait.wait_ready", self.wait_ready)


class FakeEngine:
    """One engine of a fake machine."""

    remote = False
    endpoint = "a fake daemon"

    def __init__(self, machine: FakeMachine, name: EngineName) -> None:
        self.machine = machine
        self.name: EngineName = name

    def ping(self) -> str:
        if self.machine.docker_is_away:
            raise self.machine.docker_is_away
        return "29.0"

    def image_facts(self, host: str, image: str) -> ImageFacts:
        return ImageFacts(host=host, id=f"sha256:{'f' * 64}", digests=frozenset())

    def close(self) -> None:
        pass

    def data_root(self) -> Path | None:
        return None

    def start_command(self, server: Server) -> tuple[str, ...]:
        from gemmaspec.run.engine import compose
        from gemmaspec.run.engine.process import launch_args

        return compose.args_of(server, "up") if self.name == "docker" else launch_args(server)

    def preflight(self, server: Server, *, port_is_free: bool = False) -> None:
        self.machine.note(f"{self.name} preflight", server)

    def start(self, server: Server) -> None:
        self.machine.note(f"{self.name} start", server)
        self.machine.starting(server)
        self.machine.running[server.name] = (self.name, server)

    def stop(self, server: Server) -> bool:
        self.machine.stopping(server)
        self.machine.note(f"{self.name} stop", server)
        return self.machine.running.pop(server.name, None) is not None

    def ensure_answers(self, server: Server) -> None:
        pass

    def state(self, server: Server) -> State:
        if self.name == "docker" and self.machine.docker_is_away:
            raise self.machine.docker_is_away
        engine, _ = self.machine.running.get(server.name, (None, None))
        return self.machine.seen if engine == self.name else self.machine.ended or ABSENT

    def runs(self, server: Server) -> Runs | None:
        return Runs(command=("vllm",)) if self.state(server).status == "running" else None

    def logs(self, server: Server, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        self.machine.logs_read += 1
        yield from self.machine.log

    def report(self, server: Server) -> dict[str, Any] | None:
        return copy.deepcopy(self.machine.report)

    def read(self, server: Server, path: str, *, service: str = "vllm") -> bytes | None:
        return self.machine.files.get(service)

    def read_all(self, server: Server, paths: Sequence[str], *, service: str = "vllm") -> Mapping[str, bytes]:
        contents = {path: self.read(server, path, service=service) for path in paths}
        return {path: content for path, content in contents.items() if content is not None}
