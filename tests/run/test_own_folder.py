"""A state folder that another user may write to: nothing of it is run, and what ran goes on."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.core import own_folder
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import state_dir, write_whole
from gemmaspec.core.own_folder import ensure_own
from gemmaspec.look.watch import watched
from gemmaspec.run.engine.server import Server
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.stack_lock import owned
from gemmaspec.run.ready.first_request import api_key_for
from gemmaspec.run.runtime.managed import ensure_runtime
from gemmaspec.run.runtime.spec import RuntimeSpec
from tests.support import fake_runtime
from tests.support.fake_runtime import Fake
from tests.support.real import free_port

NOBODY = 65534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A stack's folder below a state folder that all may enter."""
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    server = Server(name="mine", folder=state_dir() / "stacks" / "mine", port=1, model="m", speculates=False)
    write_whole(server.folder / "launch.py", "")
    write_whole(server.run_dir / "process.json", "{}")
    stacks.save(stacks.Started(engine="process", server=server, profile="tiny-cpu", outcome="stopped"))
    for one in (state_dir(), state_dir() / "stacks", server.folder, server.run_dir):
        one.chmod(0o755)
    return server.folder


def refused(name: str | None = "mine") -> str:
    with pytest.raises(EnvironmentMissing, match="nothing is run from") as error:
        ensure_own(name)
    return f"{error.value.message}; {error.value.hint}"


def test_a_folder_that_others_may_read_is_ones_own(folder: Path) -> None:
    ensure_own("mine")
    ensure_own("never-started")


@pytest.mark.parametrize(
    "which", ["", "stacks", "stacks/mine", "stacks/mine/launch.py", "stacks/mine/run/process.json"]
)
def test_what_all_may_write_is_named_with_its_mode_and_the_way_out(folder: Path, which: str) -> None:
    path = state_dir() / which
    path.chmod(0o777)
    said = refused()
    assert f"users other than {pwd.getpwuid(os.geteuid()).pw_name} can write to {path} (mode 0777)" in said
    assert f"chmod -R go-w {state_dir()}" in said
    subprocess.run(["chmod", "-R", "go-w", state_dir()], check=True)
    ensure_own("mine")


@ROOT
def test_in_a_sticky_folder_only_what_somebody_else_has_put_there_is_refused(folder: Path) -> None:
    (state_dir() / "stacks").chmod(0o1777)
    ensure_own("mine")
    planted = state_dir() / "stacks" / "planted"
    planted.mkdir()
    os.chown(planted, NOBODY, -1)
    ensure_own("mine")
    assert f"{planted} belongs to" in refused("planted")


@ROOT
def test_a_volume_that_is_the_state_folder_may_be_writable_for_all(folder: Path) -> None:
    state_dir().chmod(0o777)
    assert "mode 0777" in refused()
    mount = ["mount", "-t", "tmpfs", "-o", "mode=0777", "tmpfs", str(state_dir())]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        ensure_own("mine")
    finally:
        subprocess.run(["umount", str(state_dir())], check=True)


def test_what_nobody_else_can_reach_may_have_any_mode(folder: Path) -> None:
    folder.chmod(0o777)
    state_dir().chmod(0o700)
    ensure_own("mine")


def test_the_group_of_one_s_own_name_is_nobody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian and Ubuntu make a home: umask 002, and a group for each user."""
    folder.chmod(0o775)
    me = pwd.getpwuid(os.geteuid())
    for group, allowed in (
        (grp.struct_group((me.pw_name, "x", me.pw_gid, [])), True),
        (grp.struct_group((me.pw_name, "x", me.pw_gid, [me.pw_name])), True),
        (grp.struct_group((me.pw_name, "x", me.pw_gid, ["another"])), False),
        (grp.struct_group(("users", "x", me.pw_gid, [])), False),
    ):
        monkeypatch.setattr(own_folder.grp, "getgrgid", lambda _, group=group: group)
        if allowed:
            ensure_own("mine")
        else:
            assert "mode 0775" in refused()


@ROOT
@pytest.mark.parametrize(
    "which", ["", "stacks", "stacks/mine", "stacks/mine/launch.py", "stacks/mine/run/process.json"]
)
def test_what_belongs_to_another_user_is_refused_whatever_its_mode(folder: Path, which: str) -> None:
    os.chown(state_dir() / which, NOBODY, -1)
    state_dir().chmod(0o700)
    said = refused()
    assert f"belongs to {pwd.getpwuid(NOBODY).pw_name}" in said
    assert "sudo -u" in said
    assert "GEMMASPEC_STATE" in said


def test_a_link_to_another_disk_is_the_user_s_own_choice(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(state_dir())
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "link"))
    ensure_own("mine")
    (tmp_path / "state").chmod(0o777)
    assert "mode 0777" in refused()


def test_no_command_works_on_a_stack_that_others_may_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o777)
    for command in ("up", "restart", "rollback", "down", "bench"):
        with pytest.raises(EnvironmentMissing, match="nothing is run from"), owned("mine", command):
            pass
    with pytest.raises(EnvironmentMissing, match="nothing is run from"):
        watched(["mine"])


def test_no_key_is_sent_and_no_runtime_run_where_others_may_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    server = Server(name="mine", folder=folder, port=1, model="m", speculates=False, needs_api_key=True)
    assert api_key_for(server) == "secret"
    (state_dir() / "stacks").chmod(0o777)
    with pytest.raises(EnvironmentMissing, match="nothing is run from"):
        api_key_for(server)
    with pytest.raises(EnvironmentMissing, match="nothing is run from"):
        ensure_runtime(RuntimeSpec(device="cpu", vllm="0.32.0", python="3.11"), progress=lambda _: None)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Fake, Path]]:
    """A fake server of root's in a state folder to which every user of the machine may write."""
    with tempfile.TemporaryDirectory() as folder:
        fake = fake_runtime.installed(Path(folder) / "fake")
        monkeypatch.setenv("GEMMASPEC_STATE", f"{folder}/state")
        fake_runtime.make_models()
        fake.profile("shared", free_port())
        assert fake.run("up", "shared", "--engine", "process").code == 0
        try:
            subprocess.run(["chmod", "-R", "a+rwX", folder], check=True)
            (state_dir() / "stacks" / "shared" / "run").chmod(0o700)
            yield fake, Path(folder)
        finally:
            subprocess.run(["chmod", "-R", "go-w", f"{folder}/state"], check=True)
            shutil.copy(Path(folder) / "record.json", state_dir() / "stacks" / "shared" / "record.json")
            assert fake.run("down", "shared").code == 0


PLANTED = """\
cp state/stacks/shared/record.json record.json
printf '#!/bin/sh\\nid -u >> %s/ran\\nexit 1\\n' "$PWD" > python
chmod 755 python
sed 's|"overrides": \\[[^]]*\\]|"overrides": ["runtime.python='"$PWD"'/python"]|' record.json > state/stacks/shared/record.json
"""
"""What another user writes: a program of his own as the interpreter of root's next restart."""


@ROOT
@pytest.mark.real_process
def test_root_runs_nothing_that_another_user_has_planted(shared: tuple[Fake, Path]) -> None:
    fake, folder = shared
    subprocess.run(["sh", "-ec", PLANTED], cwd=folder, check=True, user=NOBODY, group=NOBODY, extra_groups=[])
    planted = json.loads((state_dir() / "stacks" / "shared" / "record.json").read_text())
    assert planted["overrides"] == [f"runtime.python={folder}/python"]
    for words in (
        ["restart", "shared"],
        ["up", "shared", "--engine", "process"],
        ["rollback", "shared"],
        ["down", "shared"],
        ["watch", "shared"],
    ):
        done = fake.run(*words)
        assert done.code == 4, (words, done)
        assert "nothing is run from" in done.err, (words, done.err)
        assert "mode 0777" in done.err, (words, done.err)
        assert not (folder / "ran").exists(), words
    assert "ready" in fake.run("status", "shared").out
