"""What a daemon on another machine gets: files in a volume, commands with its address, bounded waits. No daemon."""

from __future__ import annotations

import io
import tarfile
import time
from pathlib import Path

import pytest
import yaml

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import UnreadableFile
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.engine import compose, endpoint
from gemmaspec.run.engine.docker import stack_archive
from gemmaspec.run.stack.folder import write_files
from gemmaspec.serve.prepare import prepare


def test_the_files_of_a_remote_server_lie_in_a_volume_and_its_root_is_read_only() -> None:
    server, stack, _ = prepare(load_profile("spark-31b-mtp"), engine="docker", remote=True)
    assert server.copied
    assert {"plan.json", "launch.py", "compose.yaml"} <= set(stack.files)
    document = yaml.safe_load(stack.files["compose.yaml"])
    service = document["services"]["vllm"]
    mounts = {mount["target"]: mount for mount in service["volumes"]}
    assert mounts["/gemmaspec"] == {"type": "volume", "source": "stack", "target": "/gemmaspec"}
    assert all(mount["type"] == "volume" for mount in mounts.values()), "no folder of this machine"
    assert service["read_only"] is True
    assert "configs" not in service
    assert set(document["volumes"]) == {"cache", "stack"}


def test_the_archive_has_the_stack_and_nothing_else(tmp_path: Path) -> None:
    _, stack, _ = prepare(load_profile("tiny-cpu"), engine="docker")
    write_files(stack.files, tmp_path)
    (tmp_path / "record.json").write_text("{}")
    with tarfile.open(fileobj=io.BytesIO(stack_archive(tmp_path))) as tar:
        found = {entry.name: entry for entry in tar}
        plan = tar.extractfile("plan.json")
        assert plan is not None
        assert plan.read().decode() == stack.files["plan.json"]
    assert set(found) == set(stack.files) - {"compose.yaml"}
    assert {(entry.mode, entry.uid) for entry in found.values()} == {(0o444, 0)}


def test_a_link_in_the_place_of_a_file_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "plan.json").symlink_to("/etc/hostname")
    with pytest.raises(UnreadableFile):
        stack_archive(tmp_path)


def test_a_host_of_the_fleet_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:1")
    found = endpoint.of_host("far", "ssh://nv@spark-2:22")
    assert (found.url, found.machine, found.remote) == ("ssh://nv@spark-2:22", "spark-2", True)
    assert found.environment() == {"DOCKER_HOST": "ssh://nv@spark-2:22", "DOCKER_CONTEXT": ""}
    assert endpoint.of_host("here", "default").machine is None
    assert endpoint.find().environment() == {}
    with pytest.raises(EnvironmentMissing, match=r"far: the docker context 'nobody' does not exist"):
        endpoint.of_host("far", "nobody")


def test_a_docker_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\nsleep 60 & wait\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    server, _, _ = prepare(load_profile("spark-31b-mtp"), engine="docker", remote=True)
    began = time.monotonic()
    with pytest.raises(EnvironmentMissing, match="did not end within") as raised:
        compose.act(server, "create", {"DOCKER_HOST": "tcp://far:1", "DOCKER_CONTEXT": ""}, limit_s=0.2)
    assert time.monotonic() - began < 50, "its children are ended too"
    assert raised.value.hint == "DOCKER_HOST=tcp://far:1 docker info"
