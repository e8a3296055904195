"""tools/cpu_image.py: the image of a real vLLM for CPUs, built here from packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import real

TOOL = Path(__file__).parent.parent.parent / "tools" / "cpu_image.py"
IMAGE = "gemmaspec/vllm-cpu:0.32.0"


def build(version: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TOOL, version],
        env={**real.environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


def test_without_docker_it_says_what_to_run(tmp_path: Path) -> None:
    done = build("0.32.0", PATH=str(tmp_path))
    assert done.returncode == 4
    assert "docker is not installed" in done.stderr
    assert "tools/setup-docker.sh" in done.stderr


def test_a_daemon_that_does_not_answer_is_said(tmp_path: Path) -> None:
    fake = tmp_path / "docker"
    fake.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    fake.chmod(0o755)
    done = build("0.32.0", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 4
    assert "docker does not answer: Cannot connect to the Docker daemon" in done.stderr


@pytest.mark.parametrize("version", ["latest", "0.32.0; rm -rf /", "../0.32.0"])
def test_a_version_that_is_none_is_refused(version: str) -> None:
    done = build(version)
    assert done.returncode == 2
    assert "is not a released version" in done.stderr


@pytest.fixture(scope="module")
def image() -> str:
    """The image, built if it is not there; skipped where it cannot be built."""
    if not real.docker_answers():
        pytest.skip("no Docker engine with Compose v2 answers: make docker")
    done = build("0.32.0")
    if done.returncode == 4:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def inside(image: str, *command: str) -> str:
    options = (
        "--rm",
        "--network",
        "none",
        "--read-only",
        "--tmpfs",
        "/tmp",
        "--user",
        "1000",
        "--entrypoint",
        command[0],
    )
    done = subprocess.run(
        ["docker", "run", *options, image, *command[1:]], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.real_docker
def test_the_second_build_finds_the_first_at_once(image: str) -> None:
    done = build("0.32.0")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{IMAGE}\n", "")
    assert image == IMAGE


@pytest.mark.real_docker
def test_it_is_small_and_says_what_is_in_it(image: str) -> None:
    shown = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True, check=True).stdout
    (facts,) = json.loads(shown)
    assert facts["Config"]["Entrypoint"] == ["vllm", "serve"]
    assert facts["Config"]["Labels"]["gemmaspec.vllm"] == "0.32.0+cpu"
    if facts["Config"]["Labels"]["gemmaspec.torch"].endswith("+cpu"):
        assert facts["Size"] < 3_000_000_000


@pytest.mark.real_docker
def test_what_a_stack_needs_is_there_for_any_user_on_a_read_only_root(image: str) -> None:
    assert inside(
        image, "sh", "-c", "for each in python3 vllm curl; do command -v $each; done; stat -c %a /tmp /var/tmp"
    ).splitlines() == [
        "/usr/bin/python3",
        "/usr/local/bin/vllm",
        "/usr/bin/curl",
        "1777",
        "1777",
    ]
