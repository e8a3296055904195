"""Are the models there: folders for real, and a fake of the Hugging Face Hub, which is not reachable here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.hub import PAIR, serve
from tests.support.real import Done
from tests.support.warm import Harness

PROFILE = PAIR.format(name="mine", port=8399)


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    files = {"config.json": b"{}"}
    with serve() as server:
        server.add("some/target", files)
        server.add("some/draft", files)
        server.add("some/gated", files, gated="manual")
        server.add("some/private", files, private=True)
        yield server.url


@pytest.fixture
def up(harness: Harness, profiles: Path, hub: str) -> Callable[..., Done]:
    """`gemmaspec up` for a profile of models of the Hub, in a process of its own."""
    (profiles / "mine.yaml").write_text(PROFILE % sys.executable)
    command = ["up", str(profiles / "mine.yaml"), "--engine", "process"]
    own = {"HF_ENDPOINT": hub, "HF_HOME": str(profiles / "hf"), "HF_TOKEN": "hf_secret_token"}

    def started(*arguments: str, **env: str) -> Done:
        asked = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
        (done,) = harness.race([*command, *arguments], env=asked | own | env)
        return done

    return started


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("some/gated", "some/gated is gated, and this token has no access yet"),
        ("some/private", "the model some/private does not exist on the Hub, or it is private"),
        ("some/missing", "the model some/missing does not exist on the Hub"),
    ],
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_that_cannot_be_had_is_told_before_anything_starts(
    up: Callable[..., Done], model: str, said: str, role: str
) -> None:
    done = up("--set", f"{role}.model={model}")
    assert done.code == 4, done.err
    assert f"{role}.model: " in done.err
    assert said in done.err
    assert "hf_secret_token" not in done.err
    assert not (Path(os.environ["GEMMASPEC_STATE"]) / "stacks").exists()


def test_a_hub_that_does_not_answer_is_noted_and_the_start_goes_on(up: Callable[..., Done]) -> None:
    done = up("--timeout", "30", HF_ENDPOINT="http://127.0.0.1:9")
    assert "cannot query the Hub about some/target" in done.err
    assert "the program vllm is neither" in done.err or "vllm" in done.err
    assert done.code != 0


def test_nobody_is_asked_when_the_hub_is_switched_off(up: Callable[..., Done]) -> None:
    done = up("--set", "target.model=some/missing", "--timeout", "30", HF_HUB_OFFLINE="1")
    assert "does not exist on the Hub" not in done.err


def test_a_folder_without_a_config_is_no_model(up: Callable[..., Done], profiles: Path) -> None:
    (profiles / "empty").mkdir()
    done = up("--set", f"target.model={profiles / 'empty'}")
    assert done.code == 4
    assert "has no config.json, so it is not a model" in done.err


def test_a_full_disk_in_the_state_folder_is_one_clear_error(up: Callable[..., Done], tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        done = up(GEMMASPEC_STATE=str(disk))
        assert done.code == 4, done.err
        assert "no space left" in done.err or "free" in done.err
        left = [file for file in disk.rglob("*") if file.is_file() and not file.name.endswith(".lock")]
        assert not left
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_cannot_go_to_a_remote_engine(profiles: Path) -> None:
    from gemmaspec.core.errors import UsageError
    from gemmaspec.core.profile.load import load_profile
    from gemmaspec.serve.prepare import prepare

    with pytest.raises(UsageError, match="is a folder on this machine"):
        prepare(load_profile("tiny-cpu"), engine="docker", remote=True)
    _, stack, _ = prepare(load_profile("spark-31b-e2b"), engine="docker", remote=True)
    assert "plan.json" in stack.files, "it goes into the volume of the daemon"
    assert "source: ." not in stack.files["compose.yaml"]
    assert "type: bind" not in stack.files["compose.yaml"]
