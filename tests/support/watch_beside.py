"""What the watch in a container does under a real daemon: a draft dies, the engine hangs, the server is stopped.

The server is not root, on a root that cannot be written: patches have nowhere to go but the overlay.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from gemmaspec.look.sidecar.watcher import NO_PROCESS
from tests.support.docker_support import wait_for
from tests.support.real import PROFILE, PROJECT, STATE, gemmaspec, up
from tests.support.streamed import TOKENS
from tests.support.watched import CLIENTS, HANG_S, PATIENCE_S, SPOILER, WINDOW_S, Watching, clients

HOOK = STATE / "hook"
"""Where the server keeps its caches: a folder of this machine, in which a test can leave a file for it."""
COMPOSE = ("docker", "compose", "-p", PROJECT)
SIGNAL = 'for one in /proc/[0-9]*; do grep -qs EngineCor $one/comm && kill -{} "${{one#/proc/}}"; done; true'


def settings() -> str:
    """What the run's profile says besides: a user who is not root, the watch, and a draft that dies once HOOK/spoil exists."""
    HOOK.mkdir(exist_ok=True)
    HOOK.chmod(0o777)
    (HOOK / "sitecustomize.py").write_text(SPOILER)
    return (
        'container: {user: "1234:1234"}\n'
        f"caches: {{compile: {HOOK}}}\n"
        f"serve: {{max_num_seqs: {CLIENTS}}}\n"
        "watch: {container: true, on_dead_draft: off, on_hang: restart, "
        f"window_seconds: {WINDOW_S}, hang_seconds: {HANG_S}}}\n"
        "env: {PYTHONPATH: /var/tmp, GEMMASPEC_TEST_SPOIL: /var/tmp/spoil}\n"
    )


def container(service: str) -> dict[str, Any]:
    """What docker says about the container of a service."""
    listed = subprocess.run([*COMPOSE, "ps", "-aq", service], capture_output=True, text=True, check=True).stdout
    inspected = subprocess.run(["docker", "inspect", *listed.split()], capture_output=True, text=True, check=True)
    (found,) = json.loads(inspected.stdout)
    return dict(found)


def runs_as(service: str) -> dict[str, Any]:
    """How a container really runs."""
    found = container(service)
    host = found["HostConfig"]
    return {"user": found["Config"]["User"], "read_only": host["ReadonlyRootfs"], "without": host["CapDrop"]}


def said() -> str:
    """The line of `status` about the watch in its container."""
    return next(line for line in gemmaspec("status", PROFILE).out.splitlines() if "in its container" in line)


def wait_until_said(part: str) -> None:
    """Wait until `status` says so; the watch writes down what it knows a moment after it has logged it."""
    ends = time.monotonic() + PATIENCE_S
    while part not in (line := said()):
        assert time.monotonic() < ends, line
        time.sleep(0.5)


def watches_and_has_nothing_that_it_does_not_need() -> None:
    assert runs_as("watch") == {"user": "65534:65534", "read_only": True, "without": ["ALL"]}
    assert container("watch")["State"]["Running"]
    assert {mount["Destination"]: mount["RW"] for mount in container("watch")["Mounts"]} == {
        "/watch": False, "/run/gemmaspec-watch": True
    }  # fmt: skip
    wait_until_said("no fault, looked ")
    assert (
        f"not judged: slower than off (needs step times, which gemmaspec watch on the host has), {NO_PROCESS}" in said()
    )


def comes_back_after_it_was_killed() -> None:
    """Docker starts it again after kill -9, `up` after `docker kill`; the server notices nothing of either."""
    server = container("vllm")
    with clients(2) as load:
        for killed in range(1, 4):
            os.kill(container("watch")["State"]["Pid"], signal.SIGKILL)
            wait_for(lambda killed=killed: container("watch")["RestartCount"] == killed)  # type: ignore[misc]
            wait_for(lambda: container("watch")["State"]["Running"])
        subprocess.run(["docker", "kill", container("watch")["Id"]], capture_output=True, check=True)
        wait_until_said(f"does not run, or has written nothing; next: gemmaspec up {PROFILE} ")
        begun = up("docker")
        assert begun.code == 0, begun.err
        assert f"the watch of {PROFILE} had ended; it was started again" in begun.err
        wait_until_said("no fault, looked ")
    assert {(one.tokens, one.finish) for _, one in load.answers} == {(TOKENS, "length")}
    assert container("vllm")["State"] | {"Health": None} == server["State"] | {"Health": None}


@contextlib.contextmanager
def followed() -> Iterator[Watching]:
    """Its log as it is written."""
    found = Watching(["docker", "logs", "--follow", container("watch")["Id"]])
    try:
        yield found
    finally:
        found.end()


def names_a_dead_draft() -> None:
    """The profile wants it off, which needs a restart; the watch says that it cannot do that, and no request is lost."""
    with followed() as log, clients(CLIENTS) as load:
        log.until("watches")
        (HOOK / "spoil").touch()
        began = time.monotonic()
        named, line = log.until("begins", "dead draft")
        noticed(dead_draft=named - began)
        assert line["reason"].endswith("not restarted: a container cannot restart its server")
    assert {(one.tokens, one.finish) for _, one in load.answers} == {(TOKENS, "length")}
    wait_until_said("dead draft since ")
    (HOOK / "spoil").unlink()


def names_a_hang() -> None:
    """The profile wants a restart of an engine that hangs; the watch says that it cannot do that."""
    with followed() as log, clients(CLIENTS) as load:
        to_the_engine("STOP")
        began = time.monotonic()
        try:
            at, line = log.until("begins", "hangs")
        finally:
            to_the_engine("CONT")
        log.until("ends", "hangs")
    noticed(hangs=at - began)
    assert line["reason"].endswith("not restarted: a container cannot restart its server")
    assert {(one.tokens, one.finish) for _, one in load.answers} == {(TOKENS, "length")}


def names_a_server_that_is_stopped() -> None:
    with followed() as log:
        log.until("watches")
        subprocess.run([*COMPOSE, "stop", "--timeout", "1", "vllm"], capture_output=True, check=True)
        began = time.monotonic()
        at, _ = log.until("begins", "unreachable")
        noticed(unreachable=at - began)
    wait_until_said("unreachable since ")


def noticed(**seconds: float) -> None:
    """Show how long after a fault the watch said something (pytest -s)."""
    sys.stderr.write(f"{ ({what: round(took, 1) for what, took in seconds.items()}) }\n")


def to_the_engine(signal: str) -> None:
    """Send a signal to the engine core."""
    in_the_server(SIGNAL.format(signal))


def in_the_server(command: str) -> None:
    """Run a command of a shell in the server's container, as its own user."""
    subprocess.run([*COMPOSE, "exec", "-T", "vllm", "sh", "-c", command], check=True)
