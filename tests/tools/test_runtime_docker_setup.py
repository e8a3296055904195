"""tools/setup-docker.sh: nothing where nothing is missing, a reason where it cannot help, a daemon where none runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import real
from tests.support.second_daemon import own_daemon, second_daemon
from tests.support.small_programs import fake_program, linked

SCRIPT = Path(__file__).parent.parent.parent / "tools" / "setup-docker.sh"
NEEDED = ("bash", "env", "timeout", "id", "sed", "awk", "tail", "seq", "sleep", "mktemp", "rm", "nohup", "setsid", "sh")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH with the usual small programs, but neither docker nor apt-get."""
    return linked(tmp_path / "bin", NEEDED)


def setup(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT], env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.real_docker
@real.NO_DOCKER
def test_where_docker_and_compose_answer_nothing_is_done_or_said() -> None:
    done = setup()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_docker_and_without_debian_it_says_so(programs: Path) -> None:
    done = setup(PATH=str(programs))
    assert done.returncode == 4
    assert "docker is not installed; it is installed here on Debian only" in done.stderr


def test_without_docker_and_without_root_it_says_what_to_run(programs: Path) -> None:
    fake_program(programs, "apt-get", "echo called >&2; exit 1")
    fake_program(programs, "id", "echo 1000")
    done = setup(PATH=str(programs))
    assert done.returncode == 4
    assert "run this once as root: tools/setup-docker.sh" in done.stderr
    assert "called" not in done.stderr


def test_an_installation_that_fails_shows_the_last_lines(programs: Path) -> None:
    fake_program(programs, "apt-get", "echo 'E: no such mirror' >&2; exit 100")
    fake_program(programs, "id", "echo 0")
    done = setup(PATH=str(programs))
    assert done.returncode == 4
    assert "apt-get update failed" in done.stderr
    assert "E: no such mirror" in done.stderr


def test_a_client_without_a_daemon_gets_the_daemon_installed(programs: Path) -> None:
    fake_program(programs, "docker", '[ "$1" = compose ] && echo v2.26.1 || exit 1')
    fake_program(programs, "apt-get", 'echo "E: asked for $*" >&2; [ "$1" = update ]')
    fake_program(programs, "id", "echo 0")
    done = setup(PATH=str(programs))
    assert done.returncode == 4
    assert "asked for install -y --no-install-recommends docker.io" in done.stderr


def test_a_daemon_of_another_machine_is_not_replaced_by_one_of_this(programs: Path) -> None:
    fake_program(programs, "docker", '[ "$1" = compose ] && echo v2.26.1 || { echo "cannot connect" >&2; exit 1; }')
    fake_program(programs, "dockerd", "echo started >&2")
    done = setup(PATH=str(programs), DOCKER_HOST="tcp://192.0.2.1:2375")
    assert done.returncode == 4
    assert "DOCKER_HOST=tcp://192.0.2.1:2375 does not answer: cannot connect" in done.stderr
    assert "started" not in done.stderr


def test_compose_of_version_1_is_not_enough(programs: Path) -> None:
    fake_program(programs, "docker", '[ "$1" = compose ] && echo 1.29.2 || exit 0')
    done = setup(PATH=str(programs))
    assert done.returncode == 4
    assert "the Compose v2 plugin of docker is not installed" in done.stderr


@pytest.fixture
def daemon() -> Iterator[dict[str, str]]:
    """The environment for a second daemon beside the machine's own."""
    with second_daemon() as environment:
        yield environment


@own_daemon
@pytest.mark.real_docker
def test_a_daemon_is_started_where_none_answers_and_found_the_second_time(daemon: dict[str, str]) -> None:
    first = setup(**daemon)
    assert first.returncode == 0, first.stderr
    assert f"starting dockerd, log in {daemon['DOCKERD_LOG']}" in first.stderr
    assert (
        subprocess.run(["docker", "info"], env={**os.environ, **daemon}, check=False, capture_output=True).returncode
        == 0
    )
    second = setup(**daemon)
    assert (second.returncode, second.stderr) == (0, "")


@own_daemon
@pytest.mark.real_docker
def test_a_daemon_that_dies_is_reported_with_its_last_words(daemon: dict[str, str]) -> None:
    done = setup(**{**daemon, "DOCKERD_FLAGS": f"{daemon['DOCKERD_FLAGS']} --no-such-flag"})
    assert done.returncode == 4
    assert "the docker daemon did not start" in done.stderr
    assert "unknown flag: --no-such-flag" in done.stderr
