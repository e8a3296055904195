"""A newcomer's machine: Docker answers and has no image, no GPU, an empty home."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.second_daemon import own_daemon, second_daemon

pytestmark = [own_daemon, pytest.mark.real_docker]
ROOT = Path(__file__).parent.parent.parent
IMAGE = "gemmaspec/vllm-cpu:0.32.0"


@pytest.fixture(scope="module")
def daemon() -> Iterator[dict[str, str]]:
    with second_daemon() as environment:
        setup = [str(ROOT / "tools" / "setup-docker.sh")]
        subprocess.run(setup, env={**os.environ, **environment}, check=True, capture_output=True)
        yield environment


def gemmaspec(daemon: dict[str, str], home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": daemon["PATH"],
        "HOME": str(home),
        "DOCKER_HOST": daemon["DOCKER_HOST"],
        "PIP_CONFIG_FILE": os.environ.get("PIP_CONFIG_FILE", os.devnull),
    }
    command = [str(Path(sys.executable).parent / "gemmaspec"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)


@pytest.mark.network
@pytest.mark.parametrize("profile", ["tiny-cpu", "tiny-cpu-ngram"])
def test_the_toy_starts_as_a_process_and_says_why(daemon: dict[str, str], profile: str, tmp_path: Path) -> None:
    done = gemmaspec(daemon, tmp_path, "up", profile, "--dry-run")
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert f"process: docker answers, but the image {IMAGE} is not on this machine, and no registry has it" in said
    assert "download image" not in said
    assert "runtime cpu-0.32.0" in said
    assert "half a minute to 4 minutes to start" in said


def test_who_asks_for_docker_hears_what_is_lacking_before_anything_starts(
    daemon: dict[str, str], tmp_path: Path
) -> None:
    for words in (["--dry-run"], []):
        done = gemmaspec(daemon, tmp_path, "up", "tiny-cpu", "--engine", "docker", *words)
        assert done.returncode == 4, done.stderr
        assert f"the image {IMAGE} must be built on this machine, because no registry has it" in done.stderr
        assert "try: gemmaspec up tiny-cpu --engine process\n" in done.stderr
        assert "# or: make image    # in a checkout" in done.stderr


def test_doctor_looks_at_what_the_process_engine_needs(daemon: dict[str, str], tmp_path: Path) -> None:
    done = gemmaspec(daemon, tmp_path, "doctor", "tiny-cpu")
    assert f"process: docker answers, but the image {IMAGE}" in done.stdout + done.stderr
    assert "must be built on this machine" not in done.stdout
