"""The order and the reruns of `make test`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FLAKY = """
import pathlib

def test_a_race(request):
    seen = pathlib.Path(__file__).with_suffix(".seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""


def test_a_rerun_in_ci_is_shown_as_a_finding_though_the_run_passes(tmp_path: Path) -> None:
    (tmp_path / "test_flaky.py").write_text(FLAKY)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.fast_first",
        "--reruns",
        "1",
        "-c",
        os.devnull,
        str(tmp_path),
    ]
    root = Path(__file__).parent.parent
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=root, env={**os.environ, "GITHUB_ACTIONS": "true"}
    )
    assert done.returncode == 0, done.stdout
    assert "::error title=a test failed and passed when it ran again::" in done.stdout
    assert "test_flaky.py::test_a_race" in done.stdout
