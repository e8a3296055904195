"""`gc --volumes` against the real daemon: what is left behind goes, what is used or may be needed stays."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import yaml

from gemmaspec.cli.app import run
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.state_id import make_state_id
from gemmaspec.run.engine import endpoint, volumes
from gemmaspec.run.kept import stacks
from gemmaspec.serve import gc as garbage_of
from gemmaspec.serve.prepare import prepare
from tests.support.docker_support import IMAGE, make_image

pytestmark = [
    pytest.mark.real_docker,
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
]

PROJECT = "com.docker.compose.project"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[docker.DockerClient]:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path))
    try:
        found = endpoint.connect(endpoint.find())
    except EnvironmentMissing as missing:
        pytest.skip(f"real docker: {missing.message}")
    yield found
    found.close()


@pytest.fixture
def stack(client: docker.DockerClient) -> Iterator[str]:
    name = f"test-gc-{uuid.uuid4().hex[:8]}"
    yield name
    for one in client.containers.list(all=True, filters={"label": f"{PROJECT}=gemmaspec-{name}"}):
        one.remove(force=True)
    for volume in client.volumes.list():
        if name in volume.name:
            volume.remove(force=True)


def _volume(client: docker.DockerClient, name: str, project: str, *, state: str = "") -> None:
    client.volumes.create(name, labels={PROJECT: project, **({volumes.STATE: state} if state else {})})


WATCH = {"type": "tmpfs", "device": "tmpfs", "o": "size=1m,mode=0755,uid=65534,gid=65534"}
"""The options of the volume of a watch, as Docker lists them."""


def _watch_volume(client: docker.DockerClient, stack: str) -> str:
    """Make the volume of a stack's watch as Compose made it, and return its name."""
    project = f"gemmaspec-{stack}"
    labels = {PROJECT: project, "com.docker.compose.volume": "watch"}
    volume = client.volumes.create(f"{project}_watch", driver="local", driver_opts=WATCH, labels=labels)
    return str(volume.name)


def _offered(capsys: pytest.CaptureFixture[str], stack: str) -> set[str]:
    """Return the volumes of this test that would be removed. Nothing is: other volumes of this machine are offered, too."""
    capsys.readouterr()
    assert run(["gc", "--volumes", "--json", "--dry-run"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {one["name"] for one in found["garbage"] if one["kind"] == "volume" and stack in one["name"]}


def test_only_what_no_container_uses_and_a_stack_of_this_state_folder_made_is_removed(
    client: docker.DockerClient, stack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    left, foreign = f"gemmaspec-{stack}_huggingface", f"{stack}_of-another-project"
    anothers = f"gemmaspec-{stack}_of-another-state-folder"
    unlabelled = f"gemmaspec-{stack}_made-by-compose-itself"
    _volume(client, anothers, f"gemmaspec-{stack}", state=uuid.uuid4().hex)
    _volume(client, unlabelled, f"gemmaspec-{stack}")
    _volume(client, foreign, f"other-{stack}")
    client.volumes.create(f"{stack}-without-a-label")
    stacks.stack_folder(stack).mkdir(parents=True)
    assert _offered(capsys, stack) == set(), "this state folder has made none yet"
    assert run(["gc", "--volumes", "--dry-run"]) == 0

    _volume(client, left, f"gemmaspec-{stack}", state=make_state_id())
    assert _offered(capsys, stack) == {left}
    assert run(["gc", "--volumes", "--dry-run"]) == 0
    assert f"keeping {unlabelled}, which has no label of a state folder" in capsys.readouterr().err

    make_image(client)
    holder = client.containers.create(IMAGE, ["sleep", "99"], volumes=[f"{left}:/cache"])
    assert _offered(capsys, stack) == set(), "a container uses it"
    offered = garbage_of.Garbage(kind="volume", name=left, bytes=None, why="")
    with pytest.raises(EnvironmentMissing, match="volume is in use"):
        garbage_of.free(offered)
    holder.remove(force=True)

    assert _offered(capsys, stack) == {left}
    garbage_of.free(offered)
    here = {volume.name for volume in client.volumes.list() if stack in volume.name}
    assert here == {foreign, anothers, unlabelled, f"{stack}-without-a-label"}


def test_the_volume_of_a_watch_is_made_with_the_label_and_goes(
    client: docker.DockerClient, stack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    project = f"gemmaspec-{stack}"
    loaded = load_profile("nvidia-31b-mtp", overrides=("watch.container=true",))
    _, rendered, _ = prepare(loaded, engine="docker", remote=False)
    volumes.make(client, project, rendered.files["compose.yaml"], make_state_id())
    made = client.volumes.get(f"{project}_watch")
    assert made.attrs["Options"] == WATCH, "as Compose would have made it"
    assert _offered(capsys, stack) == {f"{project}_watch", f"{project}_cache"}


def test_compose_takes_the_volume_of_a_watch_that_gemmaspec_has_made(
    client: docker.DockerClient, stack: str, tmp_path: Path
) -> None:
    make_image(client)
    file = tmp_path / "compose.yaml"
    service = {"image": IMAGE, "command": ["true"], "volumes": ["watch:/shared"]}
    document = {
        "name": f"gemmaspec-{stack}",
        "services": {"watch": service},
        "volumes": {"watch": {"driver_opts": WATCH}},
    }
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    volumes.make(client, f"gemmaspec-{stack}", file.read_text(encoding="utf-8"), make_state_id())
    created = subprocess.run(
        ["docker", "compose", "-f", str(file), "create"], capture_output=True, text=True, check=False, timeout=120
    )
    assert created.returncode == 0, created.stderr
    assert "already exists" not in created.stderr, "Compose takes it for its own"


def test_the_volume_of_a_watch_without_a_label_goes_with_the_stack_that_is_known_here(
    client: docker.DockerClient, stack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = _watch_volume(client, stack)
    make_state_id()
    assert _offered(capsys, stack) == set(), "no stack of this state folder has that name"
    stacks.stack_folder(stack).mkdir(parents=True)
    assert _offered(capsys, stack) == {watch}
    _volume(client, f"gemmaspec-{stack}_cache", f"gemmaspec-{stack}", state=uuid.uuid4().hex)
    assert _offered(capsys, stack) == set(), "another state folder has made the others of this stack"
