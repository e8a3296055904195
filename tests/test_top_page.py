"""The page of `top --web`: what it serves, to whom, and how it looks in a real browser."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import httpx
import pytest

from gemmaspec.deploy.top import Top
from gemmaspec.deploy.top_page import serve
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.live.board import Board, GpuLoad, View
from gemmaspec.live.sample import Sample
from gemmaspec.live.window import window
from tests import browser


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


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", ""])
def test_another_site_that_points_here_is_refused(address: str, host: str) -> None:
    for path in ("", "reading.json"):
        assert httpx.get(address + path, headers={"Host": host}).status_code == 403


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


@pytest.mark.skipif(not browser.CHROMIUM, reason="no Chromium is here (tools/setup-chromium.sh installs it on Debian)")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_every_stack(address: str, tmp_path: Path, width: int) -> None:
    found = browser.document(address, tmp_path / "browser", width=width)
    assert "<b>42.0</b>" in found
    assert "&lt;img src=x" in found
    assert "owned" not in found.partition("<title>")[2].partition("</title>")[0]
    assert "accepted by position, 10 minutes: 90 %, 60 %, 30 %, 20 %" in found
    assert "exited" in found
    assert "45 W" in found
