"""Pinning and going back with real servers: a container, and a process whose models came from the fake Hub."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hub as hub_of
from tests import real
from tests.real import PORT, RUN, STATE, containers, gemmaspec, tiny_pair

DEAD = "http://127.0.0.1:9"
"""Where nobody listens: any question over the network fails at once."""


PINNED, PULLED = f"pinned-{RUN}", f"pulled-{RUN}"


@pytest.fixture
def profile(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A profile of this run's own, never ready before, stopped at the end."""
    name = PULLED if "pulled" in request.function.__name__ else PINNED
    yield tmp_path / f"{name}.yaml"
    gemmaspec("down", name)


def write(file: Path, text: str = "") -> None:
    """A profile like tiny-cpu, on a port of this run's own."""
    port = "" if "serve:" in text else f"serve: {{port: {PORT}}}\n"
    file.write_text(f"extends: tiny-cpu\nname: {file.stem}\n{text}{port}")


def goods(name: str = PINNED) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = gemmaspec("rollback", name, "--list", "--json").json["known_good"]
    return rows


def running_flag(flag: str, name: str = PINNED) -> str:
    """The value of a flag in the running server's own command, as its launcher reports it."""
    (stack,) = gemmaspec("status", name, "--json").json["stacks"]
    command = stack["report"]["command"]
    return str(command[command.index(flag) + 1])


@pytest.mark.real_docker
@real.NO_DOCKER
def test_a_stack_that_became_ready_can_be_gone_back_to(profile: Path) -> None:
    up = ("up", str(profile), "--engine", "docker")
    write(profile)
    done = gemmaspec(*up)
    assert done.code == 0, done.err
    assert "warning" not in done.err
    assert "not kept" not in done.err, done.err
    good = goods()[0]
    assert good["current"] is True

    assert gemmaspec("diff", str(profile)).code == 0
    locked = gemmaspec("lock", str(profile), "--engine", "docker", "--json")
    assert locked.code == 0, locked.err
    image = locked.json["lock"]["image"]
    assert locked.json["lock"]["versions"]["vllm"] == "0.32.0"

    write(profile, f"serve: {{port: {PORT}, max_num_seqs: 2}}\n")
    drift = gemmaspec("diff", str(profile))
    assert drift.code == 3
    assert '-      - "4"\n+      - "2"' in drift.out
    assert "-4\n+2" in drift.out

    done = gemmaspec(*up, "--locked")  # flags are the profile's; image, models and plan are the lock's
    assert done.code == 0, done.err
    assert running_flag("--max-num-seqs") == "2"
    assert [row["current"] for row in goods()] == [True, False]

    back = gemmaspec(
        "rollback", PINNED, "--json", env={"HF_ENDPOINT": DEAD, "HF_HUB_OFFLINE": "1", "HTTPS_PROXY": DEAD}
    )
    assert back.code == 0, back.err
    assert back.json["answer"]["draft_tokens"] > 0
    assert running_flag("--max-num-seqs") == "4"
    (container,) = containers(f"gemmaspec-{PINNED}")
    shown = ["docker", "inspect", "--format", "{{.Image}}", container]
    assert subprocess.run(shown, capture_output=True, text=True, check=True).stdout.strip() == image["id"]
    assert [row["current"] for row in goods()] == [True, False]

    write(profile, "patches: {required: [kv-spec-uniform-valueerror]}\n")
    refused = gemmaspec(*up, "--locked")
    assert refused.code == 3
    assert f"plan: was {locked.json['lock']['plan']}, is sha256:" in refused.err
    assert running_flag("--max-num-seqs") == "4", "what runs goes on"
    assert gemmaspec("down", PINNED).code == 0
    stopped = gemmaspec("diff", str(profile))
    assert stopped.code == 1
    assert f"{PINNED} is not running" in stopped.err


@pytest.mark.real_process
def test_pulled_models_are_served_and_gone_back_to_without_a_network(profile: Path, tmp_path: Path) -> None:
    pair = tiny_pair()
    home = tmp_path / "hf"
    with hub_of.serve() as hub:
        commits = {role: hub.add_folder(f"some/tiny-{role}", pair / f"tiny-{role}") for role in ("target", "draft")}
        write(
            profile, "target: {model: some/tiny-target}\ndraft: {model: some/tiny-draft}\nenv: {HF_HUB_OFFLINE: null}\n"
        )
        env = {**hub.environment(home), "GEMMASPEC_STATE": str(STATE)}
        pulled = gemmaspec("pull", str(profile), "--engine", "process", env=env)
        assert pulled.code == 0, pulled.err
        locked = gemmaspec("lock", str(profile), "--engine", "process", "--json", env=env)
        assert locked.code == 0, locked.err
    lock = locked.json["lock"]
    assert {role: lock[role]["revision"] for role in commits} == commits
    assert lock["versions"]["torch"].startswith("2.")

    gone = {**env, "HF_ENDPOINT": DEAD}
    up = ("up", str(profile), "--engine", "process")
    done = gemmaspec(*up, "--json", env=gone)
    assert done.code == 0, done.err
    assert done.json["answer"]["draft_tokens"] > 0
    assert "warning" not in done.err
    assert "not kept" not in done.err, done.err
    assert "the Hub does not answer; the server will use the models in the cache" in done.err
    assert gemmaspec("diff", str(profile), env=gone).code == 0

    # This test is about `rollback` by hand, so `up` must not go back by itself.
    other = ("--set", "serve.max_num_seqs=3", "--timeout", "3", "--no-rollback-on-failure")
    failed = gemmaspec(*up, *other, env=gone)
    assert failed.code == 7, failed.err
    assert [row["current"] for row in goods(PULLED)] == [False]
    back = gemmaspec("rollback", PULLED, "--json", env=gone)
    assert back.code == 0, back.err
    assert back.json["answer"]["draft_tokens"] > 0
    assert running_flag("--revision", PULLED) == commits["target"]
    drift = gemmaspec("diff", str(profile), "--json", env=gone)
    assert drift.code == 3
    assert f"-{commits['target']}" in drift.json["command"].splitlines()
