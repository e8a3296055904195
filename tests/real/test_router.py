"""The real HAProxy with gemmaspec's configuration, before fake replicas: what it repeats, bounds and counts."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from gemmaspec.core.profile.model import Policy
from gemmaspec.run.engine import router as routers
from gemmaspec.run.engine.router import RouterServer
from gemmaspec.run.engine.routing import RouterPlace
from gemmaspec.run.runtime.spec import router_program
from gemmaspec.run.stack.router import ADMIN_SOCKET, CONFIG_FILE, CONNECTIONS_OF_ONE, REQUEST_S
from tests.serve.test_replicas import _free_block
from tests.support.beside import served
from tests.support.docker_support import wait_for

pytestmark = pytest.mark.skipif(
    not router_program(), reason="HAProxy is not installed (tools/setup-tests.sh installs it on Debian)"
)

STATUSES = (500, 502, 503, 504)


class FakeReplica(ThreadingHTTPServer):
    """A server that dies of DIE, hangs up on CUT, and answers a status that the request names."""

    daemon_threads = True
    allow_reuse_port = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.read: list[str] = []
        """The content of each request that was read."""
        self.alive = True


class _Handler(BaseHTTPRequestHandler):
    server: FakeReplica
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(body)
        content = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
        content = content if isinstance(content, str) else content[0]["text"]
        self.server.read.append(content)
        if content in ("DIE", "CUT"):
            self.close_connection = True
            if content == "DIE":
                self.server.alive = False
                self.server.shutdown()
                self.server.socket.close()
            return
        self._answer(int(content) if content.isdecimal() else 200)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Pair:
    """A router and two fake replicas."""

    def __init__(self, router: RouterServer, replicas: tuple[FakeReplica, ...]) -> None:
        self.router = router
        self.replicas = replicas

    def place(self, body: object, **headers: str) -> int:
        """Return the replica that got this request."""
        before = [len(replica.read) for replica in self.replicas]
        url = f"{self.router.base_url}/v1/chat/completions"
        assert httpx.post(url, json=body, headers=headers, timeout=30, trust_env=False).status_code == 200
        after = [len(replica.read) for replica in self.replicas]
        (place,) = [index for index, (old, new) in enumerate(zip(before, after, strict=True), 1) if new > old]
        return place

    @property
    def read(self) -> list[str]:
        """What the replicas read, together."""
        return [content for replica in self.replicas for content in replica.read]

    def ask(self, content: str) -> int:
        """Return the status of one POST."""
        body = {"messages": [{"role": "user", "content": content}]}
        return httpx.post(
            f"{self.router.base_url}/v1/chat/completions", json=body, timeout=30, trust_env=False
        ).status_code


@pytest.fixture
def policy() -> Policy:
    return "round_robin"


@pytest.fixture
def pair(tmp_path: Path, policy: Policy) -> Iterator[Pair]:
    first, path = _free_block(), router_program()
    assert path
    router = RouterServer(
        name="pair", folder=tmp_path / "router", policy=policy, bind="127.0.0.1", port=first,
        metrics_port=first + 3, first_port=first + 1, program=path,
    )  # fmt: skip
    router.folder.mkdir()
    with contextlib.ExitStack() as held:
        replicas = tuple(held.enter_context(served(FakeReplica(first + index))) for index in (1, 2))
        (router.folder / CONFIG_FILE).write_text(router.config)
        process = held.enter_context(subprocess.Popen(router.command, cwd=router.folder, stdout=subprocess.DEVNULL))
        held.callback(process.kill)
        wait_for(lambda: (router.folder / ADMIN_SOCKET).exists() and router.routing.answers(), seconds=10)
        for index in (1, 2):
            router.routing.add(RouterPlace(index=index, url=""))
        yield Pair(router, replicas)


@pytest.mark.parametrize("content", ["CUT", *map(str, STATUSES)])
def test_a_request_that_a_replica_has_read_is_never_repeated(pair: Pair, content: str) -> None:
    assert pair.ask(content) == (502 if content == "CUT" else int(content))
    assert pair.read == [content]


def test_a_request_of_death_ends_one_replica_and_the_other_serves_on(pair: Pair) -> None:
    assert pair.ask("DIE") == 502
    assert sorted(replica.alive for replica in pair.replicas) == [False, True]
    assert [pair.ask("hello") for _ in range(8)] == [200] * 8
    assert pair.read.count("DIE") == 1
    assert pair.read.count("hello") == 8


def _said(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


def _turns(number: int, form: str) -> list[dict[str, object]]:
    """Return a conversation's three requests: each has the texts of those before it."""
    asks: object = f"question {number}" if form != "parts" else [{"type": "text", "text": f"question {number}"}]
    if form == "prompt":
        return [{"prompt": f"chapter {number} {'begins ' * 90}{'and goes on ' * turn}"} for turn in range(3)]
    start = [_said("system", "The same for all. " * 9)] if form in ("system", "parts", "tail") else []
    more = [
        _said("assistant", f"answer {number}"),
        _said("user", "and then?" + "x" * (200_000 if form == "tail" else 0)),
    ]
    return [{"messages": [*start, _said("user", asks), *more * turn]} for turn in range(3)]


@pytest.mark.parametrize("policy", ["conversation"])
@pytest.mark.parametrize("form", ["system", "plain", "parts", "prompt", "tail"])
def test_a_conversation_stays_with_the_replica_that_has_its_prompt_cached(pair: Pair, form: str) -> None:
    """Whatever its form, and also where its end is beyond what HAProxy reads; conversations spread over the replicas."""
    homes = []
    for number in range(12):
        places = {pair.place(body) for body in _turns(number, form)}
        assert len(places) == 1, (number, places)
        homes += places
    assert set(homes) == {1, 2}


@pytest.mark.parametrize("policy", ["conversation"])
def test_a_session_s_name_counts_before_its_text(pair: Pair) -> None:
    for number in range(6):
        headers = {"X-Session-ID": f"session-{number}"}
        assert len({pair.place(body, **headers) for body in (_turns(turn, "plain")[0] for turn in range(5))}) == 1


def test_half_requests_are_dropped_and_leave_room_for_other_addresses_and_the_metrics(pair: Pair) -> None:
    """A client from one address holds as many connections as HAProxy lets it, and sends no request to its end."""
    port, metrics = pair.router.port, f"http://127.0.0.1:{pair.router.metrics_port}/metrics"
    half = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
    began = time.monotonic()
    with contextlib.ExitStack() as held:
        open_ = []
        for _ in range(CONNECTIONS_OF_ONE + 76):
            with contextlib.suppress(ConnectionError):  # one too many is reset, sometimes before it is connected
                open_.append(held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)))
                open_[-1].sendall(half)
        assert len(open_) >= CONNECTIONS_OF_ONE
        assert httpx.get(metrics, timeout=5, trust_env=False).status_code == 200
        other = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(transport=other, trust_env=False, timeout=5) as client:
            assert client.get(f"{pair.router.base_url}/health").status_code == 200
        assert time.monotonic() - began < REQUEST_S, "too slow to show it: the first ones are dropped already"
        assert routers.serving(pair.router).startswith("no request reaches a replica through it")
        assert all(_ended(one) for one in open_)
        assert time.monotonic() - began < 3 * REQUEST_S
        assert routers.serving(pair.router) == ""


def _ended(one: socket.socket) -> bool:
    """Return whether HAProxy ends this connection, with HTTP 408 or at once."""
    try:
        said = one.recv(4096)
    except ConnectionError:
        return True
    return said == b"" or said.startswith(b"HTTP/1.1 408")
