"""`doctor --speed`: the judgement, and a real reading of this machine's memory, short."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemmaspec import data
from gemmaspec.cli.app import run
from gemmaspec.deploy.views import doctor_gpu_speed, doctor_machine
from gemmaspec.deploy.views.doctor_gpu_speed import nominal
from gemmaspec.doctor.speed import GpuReading, Reading, gpu_memory_row, gpu_reading, memory_row
from gemmaspec.engine import once
from gemmaspec.engine.identity import Identity
from gemmaspec.launcher import gpu_speed
from gemmaspec.machine.bandwidth import read_memory


def test_an_even_memory_is_fine_and_an_uneven_one_is_a_warning() -> None:
    even = memory_row(Reading(threads=2, bytes_per_second=(10e9, 11e9, 10.5e9)))
    assert (even.state, even.message) == ("ok", "reads 10.5 GB/s with 2 threads (10.0 to 11.0)")
    uneven = memory_row(Reading(threads=2, bytes_per_second=(4e9, 11e9, 10e9)))
    assert uneven.state == "warning"
    assert "something else uses it or clocks change" in uneven.message


def test_the_memory_is_really_read_and_its_threads_end() -> None:
    before = threading.active_count()
    found = read_memory(seconds=0.2, slices=2, buffer=8 * 1024 * 1024)
    assert len(found.bytes_per_second) == 2
    assert all(1e7 < rate < 5e12 for rate in found.bytes_per_second)
    assert threading.active_count() == before


def test_the_command_adds_its_row_only_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_machine.bandwidth, "read_memory", lambda: Reading(threads=1, bytes_per_second=(1e9,)))
    run(["doctor", "--engine", "process", "--speed", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["memory speed"]["state"] == "ok"
    run(["doctor", "--engine", "process", "--json"])
    assert "memory speed" not in capsys.readouterr().out


class FakeTorch(SimpleNamespace):
    """A torch whose GPU copies `rate` bytes per second, by a clock of its own."""

    def __init__(self, *, free: int = 60 * 10**9, rate: float = 100e9, available: bool = True) -> None:
        self.now = 0.0
        self.size = 0
        cuda = SimpleNamespace(
            is_available=lambda: available, mem_get_info=lambda: (free, free), synchronize=lambda: None,
            get_device_name=lambda _: "FAKE GPU",
        )  # fmt: skip
        super().__init__(cuda=cuda, uint8=None, ones=self._ones, empty_like=lambda one: one)
        self.rate = rate

    def _ones(self, size: int, **_: object) -> Any:
        def copy_(_: object) -> None:
            self.now += 2 * size / self.rate

        self.size = size
        return SimpleNamespace(copy_=copy_)

    def clock(self) -> float:
        return self.now


def test_a_copy_counts_twice_and_the_buffers_leave_room() -> None:
    torch = FakeTorch()
    found = gpu_speed.measure(torch, seconds=1, slices=4, clock=torch.clock)
    assert found["gpu"] == "FAKE GPU"
    assert found["bytes_per_second"] == pytest.approx([100e9] * 4, rel=0.01)
    assert torch.size == gpu_speed.MOST


@pytest.mark.parametrize(
    ("torch", "why"),
    [(FakeTorch(available=False), "sees no GPU"), (FakeTorch(free=4 * 10**9), "4.0 GB are free")],
)
def test_a_gpu_that_is_missing_or_full_is_said(torch: FakeTorch, why: str) -> None:
    with pytest.raises(gpu_speed.Impossible, match=why):
        gpu_speed.measure(torch, seconds=1, slices=1)


def test_the_script_says_what_it_lacks_in_any_python() -> None:
    done = subprocess.run([sys.executable, "-I", str(data.GPU_SPEED), "1", "1"], capture_output=True, text=True)
    assert gpu_reading(done.stderr.splitlines()) == "this Python has no torch"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ([], "it printed nothing"), (["Killed"], "Killed"), (['{"problem": "no\\u001b[31m GPU"}'], "GPU"),
        (['{"gpu": "x", "bytes_per_second": []}'], "impossible"),
        (['{"gpu": "x", "bytes_per_second": [1e400]}'], "impossible"), (["[]"], "[]"), (["[" * 9000], "["),
    ],
)  # fmt: skip
def test_anything_else_than_a_reading_is_a_reason(said: list[str], problem: str) -> None:
    found = gpu_reading(said)
    assert isinstance(found, str)
    assert problem in found
    assert "\x1b" not in found
    assert len(found) <= 203


def test_a_gpu_is_judged_by_what_its_machine_should_give() -> None:
    def reading(*rates: float) -> GpuReading:
        return GpuReading(gpu="NVIDIA GB10", bytes_per_second=tuple(rate * 1e9 for rate in rates))

    assert (nominal("NVIDIA H200", "nvidia"), nominal("NVIDIA L4", "nvidia")) == (4800, None)
    good = gpu_memory_row(reading(230, 231, 229), 273)
    assert (good.state, good.message) == (
        "ok", "NVIDIA GB10 copies 230 GB/s (229 to 231), 84% of the 273 that it should give",
    )  # fmt: skip
    slow = gpu_memory_row(reading(120, 121, 119), 273)
    assert slow.state == "warning"
    assert "slow state" in slow.message
    assert gpu_memory_row(reading(120, 121, 119), None).state == "ok"
    assert "uneven" in gpu_memory_row(reading(100, 230, 229), 273).message


class Subject(SimpleNamespace):
    """What the row reads of a doctor's subject."""

    def __init__(self, **own: Any) -> None:
        profile = SimpleNamespace(machine="dgx-spark", container=SimpleNamespace(python="python3"))
        server = SimpleNamespace(name="mine", python=None)
        common = {"server": server, "profile": profile, "runs_now": False, "uses_docker": True}
        image = Identity(id="sha256:0", digest=None)
        super().__init__(**{**common, "image": image, "engine": SimpleNamespace(remote=False), **own})


def test_the_image_s_own_python_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def run_once(*words: Any, gpus: bool) -> tuple[int, list[str]]:
        calls.append((*words, gpus))
        return 0, ["a warning", '{"gpu": "NVIDIA GB10", "bytes_per_second": [2.3e11]}']

    monkeypatch.setattr(once, "run_once", run_once)
    row = doctor_gpu_speed.row(Subject())  # type: ignore[arg-type]
    assert (row.name, row.state) == ("gpu memory speed", "ok")
    ((image, python, arguments, (mount,), gpus),) = calls
    assert (image, python, gpus, mount.read_only) == ("sha256:0", "python3", True, True)
    assert Path(arguments[0]).name == data.GPU_SPEED.name
    assert (mount.folder / data.GPU_SPEED.name).is_file()


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"server": None}, "name a profile"), ({"runs_now": True}, "uses the GPU now"),
        ({"image": None}, "gemmaspec pull mine"), ({"engine": SimpleNamespace(remote=True)}, "another machine"),
        ({"uses_docker": False}, "is missing"),
    ],
)  # fmt: skip
def test_what_keeps_it_from_measuring_is_said(own: dict[str, Any], why: str) -> None:
    row = doctor_gpu_speed.row(Subject(**own))  # type: ignore[arg-type]
    assert row.state == "skipped"
    assert why in row.message
