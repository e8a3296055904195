"""The page of `top --web`: what it serves, to whom, and how it looks in a real browser."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import httpx
import pytest

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.live.board import Board, GpuLoad, View
from gemmaspec.core.live.sample import Sample
from gemmaspec.core.live.window import window
from gemmaspec.look.top_page import _MOST_PAGES, Top, serve
from tests.support import browser
from tests.support.docker_support import wait_for

CHROMIUM = pytest.mark.skipif(
    not browser.CHROMIUM, reason="no Chromium is here (tools/setup-tests.sh installs it on Debian)"
)
EVIL = """<!doctype html><body><script>
const say = text => document.body.append(Object.assign(document.createElement("p"), {textContent: text}));
fetch("ADDRESSreading.json").then(() => say("cors read"), () => say("cors refused"));
fetch("ADDRESSreading.json", {mode: "no-cors", method: "POST", body: "x"}).catch(() => 0);
const script = document.createElement("script");
script.src = "ADDRESSreading.json";
script.onload = () => say("script loaded");
script.onerror = () => say("script refused");
document.head.append(script);
const frame = document.createElement("iframe");
frame.src = "ADDRESS";
frame.onload = () => { let inside; try { inside = frame.contentWindow.length; } catch {} say(inside ? "frame" : "frame loaded nothing"); };
document.body.append(frame);
</script></body>"""
"""A page that reaches for the readings in the ways that a browser offers."""


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


class FakeTop:
    """Counts how often it is asked, and shows a stack with a hostile name beside one that is gone."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> Board:
        self.looks += 1
        before = Sample(at=0.0, histograms={})
        now = Sample(
            at=1.0, histograms={}, generation_tokens=42.0, drafts=10.0, draft_tokens=40.0, accepted_tokens=20.0,
            accepted_by_position=(9.0, 6.0, 3.0, 2.0), running=2.0,
        )  # fmt: skip
        found = window(before, now)
        return Board(
            at=1_800_000_000.0,
            views=(
                View(
                    name="<img src=x onerror=document.title='owned'>", engine="docker", address="http://127.0.0.1:1",
                    vllm="0.32.0", patches=("draft-text-only",), sample=now, now=found, lately=found,
                ),
                View(name="gone", engine="process", address="http://127.0.0.1:2", problem="exited"),
            ),
            gpus=(GpuLoad(name="NVIDIA GB10", power_w=45.0, clock_mhz=2411.0, temperature_c=52.0),),
            memory_available=10**10,
        )  # fmt: skip


@pytest.fixture
def top() -> FakeTop:
    return FakeTop()


@pytest.fixture
def address(top: FakeTop) -> Iterator[str]:
    with serve(cast(Top, top), port=0, interval=60.0) as found:
        yield found


def test_it_is_served_on_the_loopback_interface_alone(address: str) -> None:
    assert address.startswith("http://127.0.0.1:")


def test_a_reading_is_shared_by_all_pages_that_are_open(address: str, top: FakeTop) -> None:
    first = httpx.get(f"{address}reading.json")
    assert first.json()["stacks"][0]["now"]["tokens_per_second"] == 42.0
    assert httpx.get(f"{address}reading.json").content == first.content
    assert top.looks == 1


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost:1", ""])
def test_another_site_that_points_here_is_refused(address: str, host: str) -> None:
    for path in ("", "reading.json"):
        assert httpx.get(address + path, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_another_sites_request_is_refused(address: str, top: FakeTop, headers: dict[str, str]) -> None:
    assert httpx.get(f"{address}reading.json", headers=headers).status_code == 403
    assert not top.looks


def test_a_link_from_another_site_opens_the_page_but_no_frame_shows_it(address: str) -> None:
    linked = httpx.get(address, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
    assert linked.status_code == 200
    assert linked.headers["x-frame-options"] == "DENY"


def test_it_is_read_alone(address: str) -> None:
    head = httpx.head(address)
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 1000
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        assert httpx.request(method, address, content=b"x" * 1000).status_code == 501


def test_clients_that_say_nothing_take_no_more_than_their_places(address: str) -> None:
    port = int(address.rstrip("/").rpartition(":")[2])
    before = threading.active_count()
    with contextlib.ExitStack() as held:
        for _ in range(3 * _MOST_PAGES):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        with socket.create_connection(("127.0.0.1", port)) as late:
            late.settimeout(60)
            assert late.recv(1) == b""  # closed at once, all places are taken
        assert threading.active_count() - before <= _MOST_PAGES
    wait_for(lambda: _answers(address))


def test_clients_that_send_a_byte_now_and_then_are_cut_off(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is less than the handler's timeout after the last, and no request ever ends."""
    monkeypatch.setattr("gemmaspec.look.top_page.HEARD_S", 1.0)
    place = ("127.0.0.1", int(address.rstrip("/").rpartition(":")[2]))
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(socket.create_connection(place)) for _ in range(_MOST_PAGES)]
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nX: ")

        def answered_beside_them() -> bool:
            for client in clients:
                with contextlib.suppress(OSError):
                    client.sendall(b"x")
            return _answers(address)

        wait_for(answered_beside_them)


def _answers(address: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(address).status_code == 200
    return False


def test_the_page_may_ask_nobody_else(address: str) -> None:
    answer = httpx.get(address)
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert b"http" not in answer.content.replace(b"http://www.w3.org/2000/svg", b"").replace(b"http-equiv", b"")
    assert httpx.get(f"{address}../etc/passwd").status_code == 404


def test_a_port_that_is_taken_is_one_sentence(top: FakeTop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = pytest.raises(EnvironmentMissing, match=f"cannot listen on 127.0.0.1:{port}")
        with refused, serve(cast(Top, top), port=port, interval=1.0):
            pass


@CHROMIUM
def test_a_page_of_another_site_learns_nothing(address: str, top: FakeTop, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(EVIL.replace("ADDRESS", address))
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        found = browser.document(f"http://localhost:{site.server_address[1]}/index.html", tmp_path / "browser")
        site.shutdown()
    assert "<p>cors refused</p>" in found
    assert "<p>script refused</p>" in found
    assert "<p>frame loaded nothing</p>" in found
    assert not top.looks


@CHROMIUM
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_every_stack(address: str, tmp_path: Path, width: int) -> None:
    found = browser.document(address, tmp_path / "browser", width=width)
    assert "<b>42.0</b>" in found
    assert "&lt;img src=x" in found
    assert "owned" not in found.partition("<title>")[2].partition("</title>")[0]
    assert "accepted by position, 10 minutes: 90 %, 60 %, 30 %, 20 %" in found
    assert "exited" in found
    assert "45 W" in found
