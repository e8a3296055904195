"""Fixtures that tests of several wings take; tests/conftest.py makes them known to all."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from gemmaspec.check.proof.prove import Probes
from gemmaspec.cli.app import run
from tests.support import fake_runtime
from tests.support.fake_engine import FakeMachine
from tests.support.fake_nvidia_smi import FakeNvidiaSmi
from tests.support.fake_runtime import Fake
from tests.support.fake_server import FakeServer, fake_server
from tests.support.fake_vllm import FakeVllm, fake_vllm
from tests.support.probing import probing

PYTHON: Final = ("--set", f"runtime.python={sys.executable}")
"""Options of a start whose environment with vLLM is this one."""


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    """A fake vLLM in an environment and a state folder of its own, for commands in processes of their own."""
    return fake_runtime.installed(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def fake_metrics() -> Iterator[FakeServer]:
    """A fake server whose counters the test sets."""
    with fake_server() as server:
        yield server


@pytest.fixture
def fake_api() -> Iterator[FakeVllm]:
    """A fake server that answers completions as vLLM does."""
    with fake_vllm() as server:
        yield server


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """A machine on which both engines are fakes that record what they are asked."""
    made = FakeMachine()
    made.install(monkeypatch)
    return made


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvidiaSmi:
    """The GPUs of a machine: none until the test lists some."""
    return FakeNvidiaSmi(tmp_path / "fake-bin", monkeypatch)


@pytest.fixture(scope="session")
def _probing() -> Iterator[tuple[Probes, Path]]:
    with probing() as running:
        yield running


@pytest.fixture(scope="session")
def probes(_probing: tuple[Probes, Path]) -> Probes:
    """The process that asks released vLLM trees, for all files that a worker runs."""
    return _probing[0]


@pytest.fixture(scope="session")
def triton(_probing: tuple[Probes, Path]) -> Path:
    """The folder with the Triton of its environment."""
    return _probing[1]


def own_profiles(folder: Path, monkeypatch: pytest.MonkeyPatch, ports: Mapping[str, int]) -> None:
    """Write profiles that extend tiny-cpu, each with its port, into a folder that gemmaspec then reads."""
    for name, port in ports.items():
        (folder / f"{name}.yaml").write_text(f"extends: tiny-cpu\nname: {name}\nserve: {{port: {port}}}\n")
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(folder))


def up(*arguments: str, name: str = "mine", engine: str = "process", command: str = "up") -> int:
    """Run `gemmaspec up` (or another command that starts) in this process; return its exit code."""
    return run([command, name, "--engine", engine, *PYTHON, *arguments])
