"""What nvidia-smi answers, in its documented format; a fake executable stands for the one that is not here."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.machine import nvidia, readings
from gemmaspec.run.machine.nvidia import Gpu, GpuReading, parse_cuda, parse_gpus, parse_loads
from gemmaspec.run.machine.readings import Gpus, device_of

H200 = "NVIDIA H200, 570.86.15, 9.0, 143771, 143100\n"
GB10 = "NVIDIA GB10, 580.95.05, 12.1, [N/A], [N/A]\n"
SUMMARY = "| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.0     |\n"


def test_a_gpu_with_memory_of_its_own() -> None:
    (gpu,) = parse_gpus(H200)
    assert gpu == Gpu(
        name="NVIDIA H200", driver="570.86.15", capability="9.0", memory=143771 * 2**20, free=143100 * 2**20
    )
    device = device_of(gpu)
    by_cuda = 150_110_000_000
    assert by_cuda < 143771 * 2**20, "the driver keeps some, and vLLM takes a share of the rest"
    assert (device.memory, device.free, device.unified) == (by_cuda, 143100 * 2**20, False)


def test_a_gpu_that_shares_the_memory_of_the_cpu() -> None:
    (gpu,) = parse_gpus(GB10)
    assert (gpu.memory, gpu.free, gpu.capability) == (None, None, "12.1")
    device = device_of(gpu)
    assert device.memory == psutil.virtual_memory().total
    assert device.unified


@pytest.mark.parametrize(
    "text",
    ["", "No devices were found\n", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"],
)
def test_no_gpu(text: str) -> None:
    assert list(parse_gpus(text)) == []


def test_several_gpus_and_an_old_driver() -> None:
    assert len(list(parse_gpus(H200 * 2))) == 2
    (old,) = parse_gpus("NVIDIA A100, 470.57.02, [N/A], 40536, 40000\n")
    assert old.capability is None
    assert parse_cuda("CUDA Version: N/A") is None


def test_numbers_of_thousands_of_digits_and_control_characters_are_dropped() -> None:
    nines = "9" * 5000
    (gpu,) = parse_gpus(f"\x1b[2JEvil\x07, 580.1, {nines}.0, {nines[:50]}, {nines[:50]}")
    assert (gpu.name, gpu.capability, gpu.memory) == ("[2JEvil", None, None)
    assert list(parse_gpus(f"A, {nines}, 9.0, 1, 1")) == []
    assert parse_cuda(f"CUDA Version: {nines}.0") is None


def test_the_load_of_each_gpu() -> None:
    assert list(parse_loads("1980, 512.34, 61, 70123\n208, [N/A], 40, [N/A]\n")) == [
        GpuReading(clock_mhz=1980, power_w=512.34, temperature_c=61, memory_used=70123 * 2**20),
        GpuReading(clock_mhz=208, power_w=None, temperature_c=40, memory_used=None),
    ]


@given(st.text(max_size=120))
def test_no_answer_is_a_crash(text: str) -> None:
    list(parse_gpus(text))
    list(parse_gpus(f"NVIDIA H200, 570.86.15, 9.0, {text}"))
    list(parse_loads(text))
    parse_cuda(f"CUDA Version: {text}")


def fake_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a fake nvidia-smi on the PATH."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_all_of_it_from_the_executable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "summary").write_text(SUMMARY)
    fake_smi(
        tmp_path,
        monkeypatch,
        f"case \"$1\" in --query-gpu=name*) echo '{GB10.strip()}';; --query*) echo '2411, 45.1, 52, [N/A]';;"
        f" *) cat {tmp_path}/summary;; esac",
    )
    assert readings.gpus() == Gpus(names=("NVIDIA GB10",), driver="580.95.05", cuda="13.0", capabilities=("12.1",))
    assert nvidia.loads() == (GpuReading(clock_mhz=2411, power_w=45.1, temperature_c=52, memory_used=None),)


def test_without_nvidia_smi_or_with_one_that_fails_there_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.gpus() == ()
    fake_smi(tmp_path, monkeypatch, "echo NVIDIA-SMI has failed >&2; exit 9")
    assert nvidia.gpus() == ()
    assert readings.gpus() is None


def test_one_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, monkeypatch, "exec sleep 30")
    monkeypatch.setattr(nvidia, "_TIMEOUT_S", 0.2)
    with pytest.raises(EnvironmentMissing, match="nvidia-smi does not answer"):
        nvidia.gpus()
    assert readings.gpus() is None
