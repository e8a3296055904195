"""The router of replicas: a process of this machine, whatever engine they run on."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import GemmaspecError, StartFailed
from gemmaspec.core.exclusive import exclusively
from gemmaspec.core.files import write_whole
from gemmaspec.core.profile.model import Policy
from gemmaspec.run.engine import port, proc, record
from gemmaspec.run.engine import tail as tail_of
from gemmaspec.run.engine.detached import signals_wait, start_detached
from gemmaspec.run.engine.http import exchange
from gemmaspec.run.engine.lines import lines
from gemmaspec.run.engine.record import MARKER, Record
from gemmaspec.run.engine.routing import HaProxy
from gemmaspec.run.engine.server import State
from gemmaspec.run.stack.router import CONFIG_FILE, haproxy_config

LOG: Final = "router.log"
_START_S: Final = 30.0
_POLL_S: Final = 0.1
_GRACE_S: Final = 5.0
_ASK_S: Final = 5.0
_KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
"""What the router sees of this shell: no key and no token, since it only passes on what a client sends."""


@dataclass(frozen=True, kw_only=True)
class RouterServer:
    """One router, as it is started."""

    name: str
    """The profile's name."""
    folder: Path
    """Its configuration, log and record, in the folder of the profile's stack."""
    policy: Policy
    bind: str
    port: int
    metrics_port: int
    first_port: int
    """Port of replica 1; the others follow."""
    program: str
    """The path of haproxy."""

    @property
    def base_url(self) -> str:
        """The router's URL from this machine."""
        host = "127.0.0.1" if self.bind in ("0.0.0.0", "::") else self.bind  # noqa: S104 - compared, not bound
        if ":" in host:
            return f"http://[{host}]:{self.port}"
        return f"http://{host}:{self.port}"

    @property
    def command(self) -> tuple[str, ...]:
        """The argv."""
        return (self.program, "-db", "-f", CONFIG_FILE)

    @property
    def config(self) -> str:
        """The text of haproxy.cfg."""
        return haproxy_config(
            bind=self.bind,
            port=self.port,
            metrics_port=self.metrics_port,
            policy=self.policy,
            first_port=self.first_port,
        )

    @property
    def routing(self) -> HaProxy:
        """What adds and removes replicas while it runs."""
        return HaProxy(self.folder)


def state(router: RouterServer) -> State:
    """Return the state of the router's process."""
    last = record.last_in(router.folder)
    if last is None:
        return State(status="absent")
    if record.leads(last):
        return State(status="running", detail=f"pid {last.pid}")
    left = record.members(last)
    if left:
        detail = f"left processes behind: {record.describe(left)}"
    else:
        detail = ""
    return State(status="exited", detail=detail, ended=_last_word(router))


def serving(router: RouterServer) -> str:
    """Return why a client's request does not reach a replica through the router; '' if it does."""
    try:
        status = exchange(router.base_url, "/health", timeout_s=_ASK_S).status
    except GemmaspecError as error:
        return f"no request reaches a replica through it: {error.message}"
    if status == 200:
        return ""
    return f"no request reaches a replica through it: HTTP {status}"


def ensure_ports(router: RouterServer) -> None:
    """Raise EnvironmentMissing if another program listens on a port of the router."""
    for bind, wanted in ((router.bind, router.port), ("127.0.0.1", router.metrics_port)):
        port.ensure_free(bind, wanted)


def start(router: RouterServer) -> None:
    """Start the router and return once it answers. Raise StartFailed with its last words if it does not."""
    with _exclusively(router):
        if state(router).status == "running":
            raise StartFailed(f"the router of {router.name} is already running")
        _end(router)
        ensure_ports(router)
        write_whole(router.folder / CONFIG_FILE, router.config, mode=0o600)
        child = _spawn(router)
        try:
            _wait(router, child)
        except BaseException:
            _end(router)
            child.wait()
            raise


def stop(router: RouterServer) -> bool:
    """End the router; return True if it was running. Requests that go through it are cut."""
    if not router.folder.is_dir():
        return False
    with _exclusively(router):
        return _end(router)


def logs(router: RouterServer, *, tail: int | None = None) -> Iterator[str]:
    """Yield the lines of the router's log."""
    yield from lines(tail_of.read(router.folder / LOG, tail=tail))


def _end(router: RouterServer) -> bool:
    last = record.last_in(router.folder)
    if last:
        ended = record.end(last, grace_s=_GRACE_S)
    else:
        ended = False
    record.forget(router.folder)
    return ended


def _spawn(router: RouterServer) -> subprocess.Popen[bytes]:
    """Start the process, with its record written first, so that a crash leaves no unknown process."""
    made = Record(
        stack=f"{router.name}/router",
        nonce=secrets.token_hex(16),
        boot_id=proc.boot_id(),
        since_ticks=proc.now_ticks(),
        command=router.command,
    )
    record.write(router.folder, made)
    kept = {name: value for name in _KEPT if (value := os.environ.get(name))}
    environment = kept | {MARKER: made.marker}
    try:
        with signals_wait():
            child = start_detached(
                router.command,
                program=router.program,
                environment=environment,
                folder=router.folder,
                log=router.folder / LOG,
            )
            known = dataclasses.replace(made, pid=child.pid, start_ticks=proc.start_ticks(child.pid))
            record.write(router.folder, known)
    except BaseException:
        record.end(made, grace_s=0)
        record.forget(router.folder)
        raise
    return child


def _wait(router: RouterServer, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        with contextlib.suppress(GemmaspecError):
            if router.routing.answers():
                return
        code = child.poll()
        if code is not None or time.monotonic() > deadline:
            if code is not None:
                how = f"ended with exit code {code}"
            else:
                how = f"did not answer within {_START_S:.0f} s"
            last_lines = "\n".join(logs(router, tail=8))
            raise StartFailed(f"the router of {router.name} {how}:\n{last_lines}", hint=f"less {router.folder / LOG}")
        time.sleep(_POLL_S)


def _last_word(router: RouterServer) -> float | None:
    with contextlib.suppress(OSError):
        return (router.folder / LOG).stat().st_mtime
    return None


@contextlib.contextmanager
def _exclusively(router: RouterServer) -> Iterator[None]:
    taken = GemmaspecError(
        f"another gemmaspec command is starting or stopping the router of {router.name}",
        hint=f"gemmaspec status {router.name}",
    )
    with exclusively(router.folder / "engine.lock", wait_s=30, taken=taken):
        yield
