"""Folders that were deleted, moved or copied: a stack's under its running server, and a runtime's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gemmaspec.run.engine import record
from gemmaspec.run.kept.stacks import stack_folder
from tests.support import fake_runtime
from tests.support.fake_runtime import Fake
from tests.support.real import free_port


@pytest.mark.parametrize("ended_by", [("down", "lost"), ("down", "--all")])
def test_a_server_without_its_folder_is_named_and_ended(fake: Fake, ended_by: tuple[str, ...]) -> None:
    fake_runtime.make_models()
    fake.profile("lost", free_port())
    assert fake.run("up", "lost", "--engine", "process").code == 0
    lost = record.read(stack_folder("lost") / "run")
    assert lost
    try:
        shutil.rmtree(stack_folder("lost"))
        status = fake.run("status", "--json")
        (row,) = status.json["stacks"]
        assert (row["name"], row["state"], row["next"]) == ("lost", "unknown", "gemmaspec down lost")
        assert f"pid {lost.pid}" in row["why"]
        for command in (["logs", "lost"], ["up", "lost", "--engine", "process"], ["restart", "lost"]):
            refused = fake.run(*command)
            assert refused.code == 4, command
            assert "was deleted, but its server still runs" in refused.err
            assert "gemmaspec down lost" in refused.err
        done = fake.run(*ended_by)
        assert done.code == 0, done.err
        assert "lost is stopped" in done.err
        assert not record.members(lost)
    finally:
        record.end(lost, grace_s=0)
    assert json.loads(fake.run("status", "--json").out)["stacks"] == []


def test_a_folder_that_was_moved_is_not_another_servers(fake: Fake, tmp_path: Path) -> None:
    fake_runtime.make_models()
    fake.profile("moved", free_port())
    assert fake.run("up", "moved", "--engine", "process").code == 0
    try:
        stack_folder("moved").rename(tmp_path / "moved")
        assert json.loads(fake.run("status", "--json").out)["stacks"] == []
    finally:
        (tmp_path / "moved").rename(stack_folder("moved"))
        assert fake.run("down", "moved").code == 0


def test_a_runtime_that_was_copied_is_not_started_in_the_python_of_the_old_place(fake: Fake) -> None:
    fake_runtime.make_models()
    fake.profile("copied", free_port())
    program = fake.python.parent / "vllm"
    text = program.read_text()
    try:
        program.write_text(text.replace(f"#!{fake.python}", "#!/usr/bin/python3", 1))
        refused = fake.run("up", "copied", "--engine", "process")
        assert refused.code == 4
        assert f"would run /usr/bin/python3, not {fake.python}" in " ".join(refused.err.split())
    finally:
        program.write_text(text)
