"""What pinning says of the server that tests share in a container: known good, locked, changed, and gone back to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.real import PROFILE, STATE, gemmaspec, up
from tests.support.watch_beside import container
from tests.support.watched import CLIENTS

DEAD = "http://127.0.0.1:9"
"""Where nobody listens: any question over the network fails at once."""
LOCK = STATE / "profiles" / f"{PROFILE}.lock"


@contextlib.contextmanager
def own_profile() -> Iterator[Path]:
    """Yield the file of the run's profile, and write it as it was afterwards, without its lock."""
    file = STATE / "profiles" / f"{PROFILE}.yaml"
    before = file.read_text()
    try:
        yield file
    finally:
        file.write_text(before)
        LOCK.unlink(missing_ok=True)


def goods(name: str = PROFILE) -> list[bool]:
    """Whether each known good stack is the current one, the newest first."""
    return [row["current"] for row in gemmaspec("rollback", name, "--list", "--json").json["known_good"]]


def running_flag(flag: str) -> str:
    """The value of a flag in the running server's own command, as its launcher reports it."""
    (stack,) = gemmaspec("status", PROFILE, "--json").json["stacks"]
    command = stack["report"]["command"]
    return str(command[command.index(flag) + 1])


def is_the_known_good_one_and_locked() -> dict[str, Any]:
    """Return its lock."""
    assert goods()[0]
    assert gemmaspec("restart", PROFILE, "--dry-run").code == 0
    done = gemmaspec("lock", PROFILE, "--engine", "docker", "--json")
    assert done.code == 0, done.err
    lock: dict[str, Any] = done.json["lock"]
    assert lock["versions"]["vllm"] == "0.32.0"
    return lock


def fails_locked_with_another_flag(profile: Path) -> None:
    """Flags are the profile's; image, models and plan are the lock's. It has no time to get ready, and `up` goes on."""
    profile.write_text(profile.read_text().replace(f"max_num_seqs: {CLIENTS}", "max_num_seqs: 2"))
    drift = gemmaspec("restart", PROFILE, "--dry-run")
    assert drift.code == 3
    assert f'-      - "{CLIENTS}"\n+      - "2"' in drift.out
    assert f"-{CLIENTS}\n+2" in drift.out
    failed = up("docker", "--locked", "--timeout", "3", "--no-rollback-on-failure")
    assert failed.code == 7, failed.err
    assert not goods()[0]


def goes_back_without_a_network(lock: dict[str, Any]) -> None:
    gone = {"HF_ENDPOINT": DEAD, "HF_HUB_OFFLINE": "1", "HTTPS_PROXY": DEAD}
    back = gemmaspec("rollback", PROFILE, "--json", env=gone)
    assert back.code == 0, back.err
    assert back.json["answer"]["accepted_tokens"] > 0
    assert {patch["state"] for patch in back.json["report"]["patches"]} == {"applies"}
    assert running_flag("--max-num-seqs") == str(CLIENTS)
    assert container("vllm")["Image"] == lock["image"]["id"]
    assert goods()[0]


def refuses_another_plan_and_runs_on(profile: Path, lock: dict[str, Any]) -> None:
    profile.write_text(profile.read_text() + "patches: {required: [kv-spec-uniform-valueerror]}\n")
    refused = up("docker", "--locked")
    assert refused.code == 3
    assert f"plan: was {lock['plan']}, is sha256:" in refused.err
    assert running_flag("--max-num-seqs") == str(CLIENTS), "what runs goes on"
