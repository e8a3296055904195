"""One command at a time in a short section, however it is interrupted."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.exclusive import exclusively

TAKEN = GemmaspecError("another command has it")


def test_an_interrupt_while_it_is_taken_leaves_it_to_the_cleanup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor is lost with the lock on it, as when a signal arrives between two instructions."""
    real, lost = fcntl.lockf, []

    def interrupted(descriptor: int, how: int) -> None:
        copy = os.dup(descriptor)
        lost.append(copy)
        real(copy, how)
        raise KeyboardInterrupt

    monkeypatch.setattr(fcntl, "lockf", interrupted)
    with pytest.raises(KeyboardInterrupt), exclusively(tmp_path / "lock", wait_s=0, taken=TAKEN):
        pass
    monkeypatch.undo()
    with exclusively(tmp_path / "lock", wait_s=0, taken=TAKEN):
        assert _another(tmp_path) == "taken"
    assert _another(tmp_path) == "free"
    os.close(lost[0])


def test_another_process_waits_and_is_told(tmp_path: Path) -> None:
    with exclusively(tmp_path / "lock", wait_s=0, taken=TAKEN):
        assert _another(tmp_path) == "taken"
    assert _another(tmp_path) == "free"


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_is_no_lock_file_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "link":
        (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "lock").mkdir()
    with pytest.raises(EnvironmentMissing, match="cannot write"), exclusively(tmp_path / "lock", wait_s=0, taken=TAKEN):
        pass
    assert not (tmp_path / "elsewhere").exists()


def _another(folder: Path) -> str:
    """Return what another process finds: `free` or `taken`."""
    code = (
        "import sys; from pathlib import Path; from gemmaspec.core.errors import GemmaspecError\n"
        "from gemmaspec.core.exclusive import exclusively\n"
        "try:\n"
        "    with exclusively(Path(sys.argv[1]), wait_s=0.1, taken=GemmaspecError('taken')): print('free')\n"
        "except GemmaspecError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, folder / "lock"], capture_output=True, text=True, check=True)
    return done.stdout.strip()
