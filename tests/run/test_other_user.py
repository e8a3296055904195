"""What another user of the machine sees of a state folder, and what is written for its owner alone."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

from gemmaspec import cli, look, serve
from gemmaspec.cli.app import run
from gemmaspec.core.files import UnreadableFile, make_folder, other_owner, read_regular, state_dir, write_whole
from gemmaspec.run import engine, kept
from gemmaspec.run.kept.newprofile import _written
from tests.support import fake_runtime
from tests.support.real import free_port

NOBODY = 65534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a command as another user")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A state folder that is not there yet."""
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "deep" / "state"))
    return state_dir()


@pytest.fixture
def as_nobody(own: Path, tmp_path: Path) -> Iterator[Path]:
    """This process with another user's rights; its state folder is root's, below folders that all may enter."""
    write_whole(own / "stacks" / "mine" / "run" / "process.json", "{}", mode=0o600)
    (own / "stacks" / "mine" / "record.json").write_text("{}")
    folders = [one for one in own.parents if one == tmp_path or tmp_path in one.parents or one in tmp_path.parents]
    for room in (cli, look, serve, kept, engine, filelock):  # the other user may not be able to read Python itself
        for one in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            if not one.name.endswith("__main__"):
                importlib.import_module(one.name)
    before = {one: mode(one) for one in folders if one != Path("/")}
    for one in before:
        one.chmod(before[one] | 0o055)
    os.seteuid(NOBODY)
    try:
        yield own
    finally:
        os.seteuid(0)
        for one, was in before.items():
            one.chmod(was)


def test_a_new_state_folder_is_its_owners_alone(own: Path) -> None:
    make_folder(own / "stacks" / "mine")
    assert mode(own) == 0o700
    assert mode(own.parent) & 0o055  # a folder above it is nobody's secret


def test_a_state_folder_that_is_there_keeps_its_mode(own: Path) -> None:
    own.mkdir(parents=True)
    own.chmod(0o750)
    write_whole(own / "stacks" / "mine" / "record.json", "{}")
    assert mode(own) == 0o750


def test_a_profile_of_ones_own_is_read_by_its_owner_alone(tmp_path: Path) -> None:
    _written(tmp_path / "profiles" / "mine.yaml", "extends: tiny-cpu\n")
    assert mode(tmp_path / "profiles") == 0o700
    assert mode(tmp_path / "profiles" / "mine.yaml") == 0o600


@ROOT
def test_what_belongs_to_another_user_is_said_with_the_way_out(as_nobody: Path) -> None:
    file = as_nobody / "stacks" / "mine" / "run" / "process.json"
    assert other_owner(file) == "root"
    with pytest.raises(UnreadableFile, match="Permission denied; it belongs to root") as refused:
        read_regular(file)
    assert (refused.value.hint or "").startswith("sudo -u root gemmaspec")


@ROOT
@pytest.mark.parametrize("words", [["status"], ["status", "mine"], ["down", "mine"], ["status", "mine", "--wait"]])
@pytest.mark.parametrize("shown", [0o700, 0o755])
def test_no_command_of_another_user_advises_to_remove_anything(
    as_nobody: Path, words: list[str], shown: int, capsys: pytest.CaptureFixture[str]
) -> None:
    os.seteuid(0)
    as_nobody.chmod(shown)
    (as_nobody / "stacks" / "mine" / "record.json").chmod(0o600)
    os.seteuid(NOBODY)
    code = run(words)
    said = "".join(capsys.readouterr())
    assert code == 4, said
    assert "rm -r" not in said
    assert "belongs to root" in " ".join(said.split())
    assert "sudo -u root gemmaspec" in said or (words == ["status"] and shown == 0o755)  # its table has no commands


@ROOT
def test_another_user_reads_nothing_of_a_state_folder(own: Path, tmp_path: Path) -> None:
    write_whole(own / "stacks" / "mine" / "record.json", "{}")
    for one in (tmp_path, own.parent):
        one.chmod(0o755)
    code = "import os,sys; os.setuid(65534); print(os.access(sys.argv[1], os.R_OK), open(sys.argv[1]).read())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(own / "stacks" / "mine" / "record.json")], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Permission denied" in done.stderr


@ROOT
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed (Debian: util-linux)")
def test_another_users_server_in_a_shared_folder_is_never_called_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fake = fake_runtime.installed(Path(folder) / "fake")
        monkeypatch.setenv("GEMMASPEC_STATE", f"{folder}/state")
        fake_runtime.make_models()
        fake.profile("shared", free_port())
        as_other = [
            "setpriv",
            "--reuid",
            str(NOBODY),
            "--regid",
            str(NOBODY),
            "--clear-groups",
            sys.executable,
            "-m",
            "gemmaspec",
        ]
        with contextlib.ExitStack() as opened:
            assert fake.run("up", "shared", "--engine", "process").code == 0
            opened.callback(fake.run, "down", "shared")
            opened.callback(subprocess.run, ["chmod", "-R", "go-w", f"{folder}/state"], check=True)
            subprocess.run(["chmod", "-R", "a+rwX", folder], check=True)
            homes = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"), folder)
            own = {**fake.environment(), **homes, "PYTHONDONTWRITEBYTECODE": "1"}
            if subprocess.run([*as_other, "--version"], env=own, cwd="/", capture_output=True, check=False).returncode:
                pytest.skip("another user may not read this Python")
            for words in (["down", "shared"], ["down", "shared", "--force"], ["restart", "shared"]):
                done = subprocess.run(
                    [*as_other, *words], env=own, cwd="/", capture_output=True, text=True, check=False
                )
                assert done.returncode != 0, words
                assert "nothing is run from" in done.stderr, (words, done.stderr)
                assert "sudo -u root gemmaspec" in done.stderr, (words, done.stderr)
                assert "was not running" not in done.stderr
                assert "shared is ready" in fake.run("status", "shared").out, words
