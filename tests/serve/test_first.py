"""The first ten minutes: `up` without a name, and what it says before anything long."""

from __future__ import annotations

import json
import os
import pty
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.files import state_dir
from gemmaspec.run.kept.models import ModelRef
from gemmaspec.run.machine.nvidia import Gpu
from gemmaspec.run.ready.phases import Phase
from gemmaspec.serve import start_costs
from tests.support.fake_engine import FakeMachine
from tests.support.fake_nvidia_smi import FakeNvidiaSmi, card

PYTHON = ("--engine", "process", "--set", f"runtime.python={sys.executable}")


@pytest.mark.parametrize(
    ("found", "offered", "said"),
    [
        (None, "tiny-cpu", "no NVIDIA GPU was found"),
        (card("NVIDIA H200", gib=140, capability="9.0"), "nvidia-31b-mtp", "expected: "),
        (card("NVIDIA GeForce RTX 3050", gib=4, capability="8.6"), "tiny-cpu", "nvidia-31b-mtp does not fit"),
        (card("NVIDIA L40S", gib=45, capability="8.9"), "nvidia-31b-mtp", "GB (l40s)"),
        (card("NVIDIA L20", gib=45, capability="8.9"), "nvidia-31b-mtp", "expected: not known for this GPU"),
        (card("NVIDIA A100-SXM4-80GB", gib=80, capability="8.0"), "nvidia-31b-mtp", "GB (a100)"),
    ],
)  # fmt: skip
def test_up_without_a_name_offers_what_fits_and_asks_nobody_in_a_script(
    found: Gpu | None, offered: str, said: str, nvidia_smi: FakeNvidiaSmi, capsys: pytest.CaptureFixture[str]
) -> None:
    if found:
        nvidia_smi.lists(found)
    assert run(["up"]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert f"try: gemmaspec up {offered}" in printed


def test_a_spark_is_offered_the_best_answers_and_the_fastest_with_what_is_published_of_each(
    nvidia_smi: FakeNvidiaSmi, capsys: pytest.CaptureFixture[str]
) -> None:
    nvidia_smi.lists(card("NVIDIA GB10", gib=None, capability="12.1"))
    assert run(["up"]) == 2
    printed = capsys.readouterr().err
    assert "try: gemmaspec up spark-31b-mtp" in printed
    assert "gemmaspec up spark-26b-a4b-mtp    # " in printed
    assert printed.count("expected: ") == 2
    assert "published: 39.1 tokens/s, 11 without a draft" in printed
    assert "published: 108.78 tokens/s, 40.85 without a draft" in printed
    assert printed.count("the two differ because expected assumes ") == 2
    assert "how many drafted tokens are accepted depends on the text" in printed
    assert "the published server took at most 46 ms, with all 4 drafted tokens accepted" in printed


@pytest.mark.usefixtures("nvidia_smi")
def test_up_without_a_name_starts_what_it_offers_when_told_yes(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["up", "--yes", *PYTHON]) == 0
    assert machine.calls[-1] == "process wait tiny-cpu:8321"
    assert "tiny-cpu is ready" in capsys.readouterr().out


@pytest.mark.usefixtures("nvidia_smi")
@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 0), ("n\n", 2)])
def test_up_asks_once(answer: str, code: int, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, terminal = pty.openpty()
    os.write(keyboard, answer.encode())
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run(["up", *PYTHON]) == code
    os.close(keyboard)
    assert bool(machine.calls) is (code == 0)


def test_sizes_and_times_are_said_before_anything_long(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.has_images = False
    monkeypatch.setattr("gemmaspec.serve.start_costs._image_bytes", lambda _: 9_400_000_000)
    assert run(["up", "spark-31b-mtp", "--engine", "docker", "--dry-run", "--json"]) == 0
    before = json.loads(capsys.readouterr().out)["ahead"]
    assert [(one["verb"], one["what"]) for one in before["parts"]] == [
        ("download", "image"), ("download", "target"), ("download", "draft"),
    ]  # fmt: skip
    assert [round(one["nbytes"] / 1e9, 1) for one in before["parts"]] == [9.4, 19.3, 0.9]
    assert run(["up", "spark-31b-mtp", "--engine", "docker", "--dry-run"]) == 0
    assert "time:   29.6 GB to download: 40 min at 100 Mbit/s, 4 min at 1 Gbit/s" in capsys.readouterr().out


def test_what_a_start_took_is_said_before_the_next_one(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["up", "tiny-cpu", *PYTHON]) == 0
    assert "half a minute to 4 minutes to start" in capsys.readouterr().err
    file = state_dir() / "took" / "tiny-cpu.process.json"
    file.write_text(json.dumps({"seconds": 68.2, "phases": {"importing": 59.3, "loading target": 1.1, "ready": 7.8}}))
    assert run(["restart", "tiny-cpu"]) == 0
    assert "about 68 s to start, as last time" in capsys.readouterr().err


def test_what_is_left_follows_from_the_phases_of_an_earlier_start() -> None:
    earlier = start_costs.Earlier(seconds=68.2, phases={"importing": 59.3, "loading target": 1.1, "warming up": 7.8})
    assert earlier.left(Phase.IMPORTING) == pytest.approx(68.2)
    assert earlier.left(Phase.LOADING_TARGET) == pytest.approx(8.9)
    assert earlier.left(Phase.PATCHING) is None


@pytest.mark.parametrize("damaged", ["", "[]", '{"seconds": "x", "phases": {}}', '{"seconds": 1, "phases": [1]}', "{"])
def test_a_damaged_memory_of_times_is_no_memory(damaged: str, tmp_path: Path) -> None:
    file = state_dir() / "took" / "a.docker.json"
    file.parent.mkdir(parents=True)
    file.write_text(damaged)
    assert start_costs.earlier_start("a", "docker") is None


def test_what_is_left_of_a_download_is_said_while_the_server_starts(tmp_path: Path) -> None:
    model = ModelRef(role="target", model="LilaRest/gemma-4-31B-it-NVFP4-turbo", revision=None)
    blobs = tmp_path / "models--LilaRest--gemma-4-31B-it-NVFP4-turbo" / "blobs"
    blobs.mkdir(parents=True)
    start: Any = SimpleNamespace(fetch=(model,), started=SimpleNamespace(hub_cache=str(tmp_path)))
    said: list[str] = []
    came = threading.Event()

    def note(text: str) -> None:
        said.append(text)
        came.set()

    with start_costs.downloads_told(start, note, interval_s=0.05):
        with (blobs / "a.incomplete").open("wb") as file:
            file.truncate(9_650_000_000)  # sparse: half of it
        assert came.wait(60)
    assert said[0].startswith("downloaded 9.65 of 19.30 GB, about ")


def test_nothing_is_said_of_downloads_that_cannot_be_seen() -> None:
    start: Any = SimpleNamespace(fetch=(), started=SimpleNamespace(hub_cache=None))
    with start_costs.downloads_told(start, pytest.fail, interval_s=0.01):
        pass


def test_an_image_whose_registry_says_nothing_counts_as_such_images_do() -> None:
    image = start_costs.Part(verb="download", what="image", name="vllm/vllm-openai:v0.33.0", estimate=10_500_000_000)
    target = start_costs.Part(verb="download", what="target", name="some/target", nbytes=20_000_000_000)
    before = start_costs.Ahead(parts=(image, target), weights=20_000_000_000, start_s=None, machine="dgx-spark")
    assert before.time().startswith("about 30.5 GB to download")
    assert "5 to 13 min in all were published" in before.time()
    unknown = start_costs.Part(verb="download", what="image", name="some/image")
    assert "at least 20.0 GB" in start_costs.Ahead(parts=(unknown, target), weights=None, start_s=None).time()
