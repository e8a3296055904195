"""What all tests share: nothing of this machine's own state is read or written."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import real, warm
from tests.support.fixtures import (  # noqa: F401 - fixtures of all tests
    _probing,
    fake,
    fake_api,
    fake_metrics,
    machine,
    nvidia_smi,
    probes,
    triton,
)

# Output is wrapped to $COLUMNS. pytest-xdist sets it for its workers, and the readline that pytest imports sets it for
# child processes alone, out of sight of os.environ.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

# Every command that a test runs would look there first; a test that is about it sets its own.
os.environ.pop("PYTHONPATH", None)

# Without bytecode every command that a test runs compiles its hundreds of modules again, and every worker the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts background jobs with SIGINT ignored, and nohup ignores SIGHUP; children inherit both, and some
# tests are about them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Collecting makes millions of objects that stay. Looking among them for garbage again and again is 2 fifths of its work.
gc.disable()

settings.register_profile("suite", deadline=None, derandomize=True)  # the same examples everywhere, however slow
settings.load_profile("suite")

# A package index that does not answer for a minute must not decide about thousands of tests.
os.environ.setdefault("PIP_RETRIES", "8")
PIP_CONF = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pip" / "pip.conf"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is only of one engine for the other. Parametrized with one engine alone, tests would lose their order."""
    items[:] = [
        item for item in items if not (only := item.get_closest_marker("only_engine")) or engine_of(item) in only.args
    ]


def engine_of(item: pytest.Item) -> str:
    """Return the engine with which a test runs."""
    assert isinstance(item, pytest.Function)
    return str(item.callspec.params["engine"])


def pytest_collection_finish() -> None:
    """Look for garbage again, but only among what the tests make, and as seldom as a command does (__main__.py)."""
    gc.freeze()
    gc.set_threshold(200_000)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _run() -> Iterator[None]:
    """The state folder of real servers, for this process's part of the suite."""
    real.make_state()
    yield
    warm.end_harness()
    real.remove_state()


@pytest.fixture(scope="session", params=real.ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each engine in turn, for tests that share what runs under the run's profile; what they leave is stopped."""
    yield request.param
    real.gemmaspec("down", real.PROFILE)


@pytest.fixture(scope="session")
def harness() -> warm.Harness:
    """The process whose children commands are, for all files that a worker runs."""
    return warm.harness()


@pytest.fixture(scope="session")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new folder at each `next`. `mktemp` reads all names that are there, so thousands of tests would read millions."""
    base = tmp_path_factory.mktemp("own")

    def made() -> Iterator[Path]:
        for number in itertools.count():
            folder = base / str(number)
            folder.mkdir()
            yield folder

    return made()


@pytest.fixture(autouse=True)
def _own_folders(_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    if PIP_CONF.is_file() and "PIP_CONFIG_FILE" not in os.environ:  # hidden by the next lines, and not gemmaspec's
        monkeypatch.setenv("PIP_CONFIG_FILE", str(PIP_CONF))
    monkeypatch.setenv("GEMMASPEC_STATE", str(next(_folders)))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(next(_folders)))
    for name in ("GEMMASPEC_PROFILES", "VLLM_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """A folder for profiles written by a test."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    return folder
