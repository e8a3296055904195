"""Replicas of vLLM itself in Docker, with a key, changed one at a time, killed under constant load, and asked to death.

`make test-replicas` runs it: six starts take minutes. It prints what became of the requests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.docker_support import wait_for
from tests.support.fake_runtime import Done
from tests.support.printed import said
from tests.support.real import RUN, tiny_pair
from tests.support.stream_load import load

pytestmark = pytest.mark.skipif(os.environ.get("GEMMASPEC_REPLICAS") != "1", reason="takes minutes: make test-replicas")

NAME = f"roll-{RUN}"
PORT = 26010
ADDRESS = f"http://127.0.0.1:{PORT}/v1"
KEY = "not-a-real-key"
CLIENTS, TOKENS, PAUSE_S = 2, 32, 1.0
"""A load that leaves two cores time for the start of a replica."""
PATCH = "nvfp4-nan-scales"
DEADLY = {"temperature": 1, "top_k": 64}
"""Ends vLLM's engine on a CPU that drafts, without patches/cpu-top-k-no-rows: the profile leaves that one out."""
PROFILE = f"""\
extends: tiny-cpu
name: {NAME}
serve: {{port: {PORT}}}
pass_env: [VLLM_API_KEY]
replicas: 2
cpus: ["0", "1"]
router: {{drain_seconds: 120}}
"""
PATCHES = """\
patches:
  required: [kv-spec-uniform-valueerror, kv-sharing-uniform-specs, draft-text-only, cpu-expand-sampling]
  optional: [{}]
"""


class Owner:
    """Who runs the replicas."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "profiles").mkdir()
        (folder / "state").mkdir()
        (folder / "state" / "tiny").symlink_to(tiny_pair().resolve())
        self.profile()

    def profile(self, optional: str = "") -> None:
        """Write the profile, with a patch that may be missing."""
        (self.folder / "profiles" / f"{NAME}.yaml").write_text(PROFILE + PATCHES.format(optional))

    def run(self, *arguments: str) -> Done:
        """Run `gemmaspec …` to its end."""
        own = {"GEMMASPEC_PROFILES": f"{self.folder}/profiles", "GEMMASPEC_STATE": f"{self.folder}/state"}
        done = subprocess.run(
            [sys.executable, "-m", "gemmaspec", *arguments], capture_output=True, text=True, check=False,
            env={**os.environ, **own, "VLLM_API_KEY": KEY},
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def patches(self, replica: int) -> set[str]:
        """The patches that a replica put over the files of its image."""
        done = self.run("status", f"{NAME}-{replica}", "--wait", "--json")
        return {one["patch"] for one in json.loads(done.out)["report"]["patches"] if one["state"] == "applies"}


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    """Two replicas that serve."""
    made = Owner(tmp_path_factory.mktemp("owner"))
    began = time.monotonic()
    try:
        up = made.run("up", NAME, "--engine", "docker", "--timeout", "900")
        assert up.code == 0, up.err
        said("up", began, up.err + up.out)
        yield made
    finally:
        made.run("down", NAME)
        caches = [f"gemmaspec-{NAME}-{replica}_cache" for replica in (1, 2)]
        subprocess.run(["docker", "volume", "rm", "--force", *caches], capture_output=True, check=False)


def kill(replica: str) -> None:
    """Kill a replica's first process, and by that all of its container, as the kernel does when memory is short."""
    container = f"gemmaspec-{replica}-vllm-1"
    asked = ["docker", "inspect", "--format", "{{.State.Pid}}", container]
    os.kill(int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout), signal.SIGKILL)


def state(replica: int) -> tuple[str, str]:
    """Return whether a replica's container runs, and since when."""
    asked = [
        "docker",
        "inspect",
        "--format",
        "{{.State.Status}} {{.State.StartedAt}}",
        f"gemmaspec-{NAME}-{replica}-vllm-1",
    ]
    status, at = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    return status, at


def ask(session: str, **more: object) -> int:
    """Ask for a few words, and return the status of the answer."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 8, **more}
    headers = {"Authorization": f"Bearer {KEY}", "X-Session-ID": session}
    return httpx.post(
        f"{ADDRESS}/chat/completions", json=body, headers=headers, trust_env=False, timeout=300
    ).status_code


def answering() -> int:
    """Return the replica that a request runs on; 0 if there is none."""
    for replica in (1, 2):
        text = httpx.get(f"http://127.0.0.1:{PORT + replica}/metrics", trust_env=False, timeout=30).text
        rows = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running{")]
        if sum(float(row.split()[-1]) for row in rows):
            return replica
    return 0


def test_a_patch_reaches_containers_one_at_a_time_and_no_request_ends_early(owner: Owner) -> None:
    assert httpx.get(f"{ADDRESS}/models", trust_env=False).status_code == 401

    owner.profile(PATCH)
    began = time.monotonic()
    with load(ADDRESS, "tiny", clients=CLIENTS, tokens=TOKENS, key=KEY, pause_s=PAUSE_S) as found:
        changed = owner.run("up", NAME, "--engine", "docker", "--timeout", "900")
        seconds = time.monotonic() - began
    said("another patch", began, f"{changed.err}{changed.out}{found}\n{dict(found.reasons)}\n{seconds:.0f} s")
    assert changed.code == 0, changed.err
    assert [PATCH in owner.patches(replica) for replica in (1, 2)] == [True, True]
    assert set(found.fates) == {"whole"}, f"{found} {found.reasons}"
    said("status", time.monotonic(), owner.run("status", NAME).out)
    assert json.loads(owner.run("status", NAME, "--wait", "--json").out)["unchanged"] == [f"{NAME}-1", f"{NAME}-2"]


def test_a_killed_replica_cuts_only_its_own_streams_and_docker_starts_it_again(owner: Owner) -> None:
    began = time.monotonic()
    with load(ADDRESS, "tiny", clients=CLIENTS, tokens=TOKENS, key=KEY, pause_s=PAUSE_S) as found:
        victim = f"{NAME}-{wait_for(answering, seconds=600)}"
        kill(victim)
        killed = found.fates.total()
        wait_for(lambda: found.fates.total() >= killed + 4 * CLIENTS, seconds=600)
        said(f"kill -9 of {victim}", began, f"{owner.run('status', NAME).out}{found}\n{dict(found.reasons)}")
        back = owner.run("status", victim, "--wait", "--timeout", "900")
    said("docker has started it again", began, f"{back.err}{back.out}{found}\n{dict(found.reasons)}")
    assert back.code == 0, back.err
    said("status", time.monotonic(), owner.run("status", NAME).out)
    lost = found.fates["cut"] + found.fates["refused"]
    assert lost <= 2 * CLIENTS, f"{found} {found.reasons}"  # what it ran, and one more request of each client


def test_a_request_that_ends_a_server_ends_one_replica(owner: Owner) -> None:
    """vLLM's API server ends with 0 after its engine, so that Docker does not start it again."""
    before, began = [state(1), state(2)], time.monotonic()
    assert [status for status, _ in before] == ["running", "running"]
    assert ask("the deadly one", **DEADLY) >= 500
    wait_for(lambda: "exited" in [status for status, _ in (state(1), state(2))], seconds=300)
    said("a request of death", began, owner.run("status", NAME).out)
    assert [ask(f"session {number}", temperature=0) for number in range(8)] == [200] * 8
    survivors = [after for after in (state(1), state(2)) if after in before]
    assert len(survivors) == 1
