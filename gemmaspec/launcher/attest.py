"""Runs inside vLLM: attests, in each of its processes, that the patched functions are the ones that are bound.

The launcher puts this file into RUN/attest as `gemmaspec_attest`; attest_site.py begins it when a process looks for
vLLM. A daemon thread then looks every half second, so it sees what import, plugins and later code left behind, in
whatever order they ran. It looks only at modules that vLLM has imported, and imports none.

Each process writes what it found to RUN/attest/processes. One of them, whichever holds a lock, sums up in
RUN/attested.json: that is what the launcher's host reads. A difference ends the server with exit code 5 while it
starts; once RUN/attest/started exists, it is told and ends nothing. Standard library, Python 3.10+.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import gemmaspec_attest_code as code_of  # type: ignore[import-not-found]  # attest_code.py, under that name
import gemmaspec_attest_sum as summing  # type: ignore[import-not-found]  # attest_sum.py, under that name

LOOK_S = 0.5  # between two looks
SUM_S = 1.0  # between two sums while the server starts
WRITE_S = 10.0  # between two writings of the same, once the start is over
DIES_WITHIN_S = 15.0  # how long a process waits for the first one to end the server
CODE = 5

_begun: Attestor | None = None


def begin(folder: str) -> None:
    """Begin to attest in this process, and in those that it forks."""
    global _begun
    if _begun is None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            _begun = Attestor(folder)
            os.register_at_fork(before=_begun.hold, after_in_parent=_begun.go_on, after_in_child=_begun.forked)
            _begun.start()


class Attestor:
    """What one process knows of the patched functions in it."""

    def __init__(self, folder: str) -> None:
        """Read what is to be attested. Raise OSError or ValueError if there is nothing."""
        self.folder = folder
        with open(os.path.join(folder, "targets.json"), encoding="utf-8") as file:
            self.targets: dict[str, Any] = json.load(file)
        self.lock = threading.Lock()  # held while it looks, so that no fork sees half of a look
        self.digests = code_of.Digests()
        self.expected: dict[str, dict[str, list[str]] | str] = {}
        self.said: dict[str, Any] = {}
        self.wrote_at = 0.0
        self.cost_s = 0.0
        self.looks = 0
        self.told: set[str] = set()
        self.ending = False
        self.summed_at = 0.0
        self.sums: int | None = None  # the open lock of the process that sums up

    def start(self) -> None:
        """Begin the thread that looks."""
        threading.Thread(target=self._run, name="gemmaspec-attest", daemon=True).start()

    def hold(self) -> None:
        """Let no look run while this process forks."""
        self.lock.acquire()

    def go_on(self) -> None:
        """Let looks run again after a fork."""
        self.lock.release()

    def forked(self) -> None:
        """Go on in a child: threads do not survive a fork, and the lock of the sum is the parent's."""
        self.lock = threading.Lock()
        self.said, self.wrote_at, self.cost_s, self.looks = {}, 0.0, 0.0, 0
        if self.sums is not None:
            os.close(self.sums)
            self.sums = None
        self.start()

    def _run(self) -> None:
        while True:
            with self.lock:
                try:
                    self.look()
                except Exception as error:  # what does not look writes nothing, and what is not written is not attested
                    self._tell(f"cannot attest in process {os.getpid()}: {type(error).__name__}: {error}")
            time.sleep(LOOK_S)

    def look(self) -> None:
        """Look once at every patched function, write down what was found, and end the server if it has to end."""
        if "vllm" not in sys.modules:
            return
        began = time.thread_time()
        rows = [row for file in self.targets["files"] for row in self._file(file)]
        wrong = [row for row in rows if row["state"] == "different"]
        self.looks += 1
        self.cost_s += time.thread_time() - began
        over = self._exists("started")
        self._write(rows, over=over)
        for row in wrong:
            self._say_wrong(row, over=over)
        self._sum_up(over=over)
        if not over and self._exists("different"):
            self._end()

    def _file(self, file: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a row for each patched function of a file, one for the file if it has none."""
        name = file["module"]
        module = sys.modules.get(name)
        row = {"module": name, "function": "", "state": "not imported", "required": file["required"]}
        if module is None:
            return [row]
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            return [row]  # an import that has not ended has not bound its names
        origin = code_of.file_of(module)
        if not code_of.same_file(origin, file["file"]):
            found = f"it was imported from {origin or described_module(module)}, not from {file['file']}"
            return [{**row, "state": "different", "found": found}]
        expected = self._expected(file)
        if isinstance(expected, str):
            return [{**row, "state": "different", "found": expected}]
        rows = [self._function(module, row, function, digests) for function, digests in expected.items()]
        return rows or [{**row, "state": "attested"}]

    def _function(self, module: Any, row: dict[str, Any], name: str, digests: list[str]) -> dict[str, Any]:
        other, through = code_of.difference(module, name, digests, self.digests)
        found = {**row, "function": name, "state": "attested"}
        if other is not code_of.SAME:
            what = code_of.described(other)
            found |= {"state": "different", "found": f"it is now {what}{self._whose(other)}"}
        return {**found, "wrapped": through[:8]} if through else found

    def _whose(self, found: Any) -> str:
        """Return which general plugin brought an object, where its module says so."""
        top = str(getattr(found, "__module__", "")).partition(".")[0]
        for plugin in self.targets.get("plugins", ()):
            if top and top == str(plugin["value"]).partition(":")[0].partition(".")[0]:
                return f", of the plugin {plugin['name']} ({plugin['value']})"
        return ""

    def _expected(self, file: Mapping[str, Any]) -> dict[str, list[str]] | str:
        """Return the digests that a file's functions must have, or why there are none."""
        name = file["module"]
        if name not in self.expected:
            try:
                with open(file["file"], "rb") as opened:
                    data = opened.read()
                self.expected[name] = self._digests(file, data)
            except (OSError, SyntaxError, ValueError) as error:
                return f"{file['file']} cannot be read: {error}"
        return self.expected[name]

    def _digests(self, file: Mapping[str, Any], data: bytes) -> dict[str, list[str]] | str:
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != file["sha256"]:
            return f"{file['file']} was changed since the launcher wrote it: sha256 {sha256[:12]}…"
        code = code_of.compiled(data, file["file"]) if file["fresh"] else code_of.compile_now(data, file["file"])
        found: dict[str, list[str]] = code_of.wanted(code, data, file["hunks"])
        return found

    def _exists(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.folder, name))

    def _write(self, rows: list[dict[str, Any]], *, over: bool) -> None:
        """Write this process's word: at every look of a start, and when it changed or is old later."""
        said = {"rows": rows, "python": sys.version.split()[0]}
        now = time.monotonic()
        if said == self.said and over and now - self.wrote_at < WRITE_S:
            return
        self.said, self.wrote_at = said, now
        pid = os.getpid()
        document = {
            "schema": 1,
            "pid": pid,
            "since": summing.born(pid),
            "title": summing.title(pid),
            "checked": now,
            "looks": self.looks,
            "cost_ms": round(self.cost_s * 1000, 2),
            **said,
        }
        summing.write(os.path.join(self.folder, "processes", f"{pid}.json"), document)

    def _sum_up(self, *, over: bool) -> None:
        """Sum up all processes, if no other process does; it reads the whole of /proc, so not at every look."""
        if time.monotonic() - self.summed_at < (WRITE_S if over else SUM_S):
            return
        if self.sums is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            opened = os.open(os.path.join(self.folder, "sum.lock"), flags, 0o600)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(opened)
                return
            self.sums = opened
        self.summed_at = time.monotonic()
        summing.sum_up(self.folder, self.targets["leader"])

    def _say_wrong(self, row: Mapping[str, Any], *, over: bool) -> None:
        """Say what is wrong once; in a start of a required patch, leave word for the process that ends the server."""
        what = ".".join(part for part in (row["module"], row["function"]) if part)
        line = f"process {os.getpid()} ({summing.title(os.getpid())}): {what} is not the patched one: {row['found']}"
        self._tell(f"not attested: {line}")
        if row["required"] and not over and not self._exists("different"):
            summing.write(os.path.join(self.folder, "different"), {"line": line})

    def _tell(self, line: str) -> None:
        if line not in self.told:
            self.told.add(line)
            say(line)

    def _end(self) -> None:
        """End the server from its first process, so that its exit code is this one's; other processes wait for that."""
        if summing.is_first(self.folder, os.getpid()):
            say("vllm was stopped, because a required patch is not what runs in all of its processes")
            say("next: remove the plugin or module that replaces it, or the patch from the profile")
            for pid in summing.below(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            os._exit(CODE)
        if self.ending:
            return
        self.ending = True
        threading.Thread(target=_exit_later, name="gemmaspec-attest-end", daemon=True).start()


def _exit_later() -> None:
    time.sleep(DIES_WITHIN_S)
    os._exit(CODE)


def described_module(module: Any) -> str:
    """Return what stands in sys.modules in place of a module that has no file."""
    return f"a {type(module).__module__}.{type(module).__qualname__} without a file"


def say(line: str) -> None:
    """Print one line as the launcher does. Not by sys.stderr: a thread must not wait for its lock."""
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
    with contextlib.suppress(OSError):
        os.write(2, f"gemmaspec: {text}\n".encode("utf-8", "replace"))
