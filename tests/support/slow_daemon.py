"""The machine's Docker daemon behind a socket on which each request waits: real requests and answers, each of them late."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

REQUEST = re.compile(rb"(?:GET|POST|PUT|DELETE|HEAD) (\S+) HTTP/1\.1\r\n")


@dataclass
class SlowDaemon:
    """Where it listens, how slow it is now, and what it was asked."""

    url: str
    delay_s: float
    asked: list[str] = field(default_factory=list)

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Pass on what comes, and let each request wait."""
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if request := REQUEST.match(data):
                    self.asked.append(request[1].decode())
                    time.sleep(self.delay_s)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def slow_daemon(folder: Path, *, delay_s: float, behind: str = "/var/run/docker.sock") -> Iterator[SlowDaemon]:
    """Listen in a folder and ask the real daemon `delay_s` seconds after each request."""
    path = folder / "slow.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    daemon = SlowDaemon(f"unix://{path}", delay_s)
    ends: list[socket.socket] = [listener]

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.socket(socket.AF_UNIX)
                ends.extend((near, far))
                far.connect(behind)
                for one in ((near, far), (far, near)):
                    threading.Thread(target=daemon.pump, args=one, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield daemon
    finally:
        for one in ends:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
