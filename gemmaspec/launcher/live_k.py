"""Runs inside vLLM: a scheduler whose k, the number of drafted tokens in a step, is read from a file while it serves.

The launcher puts this file on PYTHONPATH as `gemmaspec_live_k`; `vllm serve --scheduler-cls gemmaspec_live_k.scheduler`
loads it. Nothing but the standard library and vLLM is there.

How it works (vllm/v1/core/sched/scheduler.py and async_scheduler.py, 0.32.0). With
`num_speculative_tokens_per_batch_size` in the speculative config, `Scheduler` holds `dynamic_sd_lookup`, a list from
the number of requests in a step to k. `schedule()` writes that k into `SchedulerOutput.num_spec_tokens_to_schedule`;
the model runner drafts so many, and the next step verifies as many. This class fills the whole list with one k, and
vLLM itself does the rest. At k=0 the draft still runs its first pass, which keeps its KV cache in step: so it drafts
well again as soon as k rises.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import time
from pathlib import Path
from typing import Any

CONTROL = "GEMMASPEC_LIVE_K"  # the variable that names the file to read
WATCH = "GEMMASPEC_LIVE_K_WATCH"  # the variable that names a second file to read: the one that `watch` writes
USED = "GEMMASPEC_LIVE_K_USED"  # the variable that names the file in which the k in use is written down
MOST_BYTES = 4096
MOST_ID = 64  # characters of a request's id

logger = logging.getLogger("vllm.gemmaspec_live_k")  # vLLM's handler prints what comes below "vllm"


class Invalid(Exception):
    """The control file does not hold a k; the message says why."""


class LiveK:
    """The k that the last control file to change asks for, and the file in which the k in use is written down."""

    def __init__(self, control: str, used: str, *, started: int, watch: str | None = None) -> None:
        """Begin with the k that the server was started with, and write it down.

        What `watch` asked for was meant for the server before this one, so only what it asks from now on counts.
        """
        self.controls = (control, watch) if watch else (control,)
        self.used, self.started, self.k = used, started, started
        self._seen: dict[str, tuple[int, int, int] | None] = {watch: stamp(watch)} if watch else {}
        self._complained = False
        self._write("")

    def look(self) -> int | None:
        """Return a new k; None while the files are as they were, are missing, or are invalid. Never raises.

        One stat each while nothing changes. An invalid file is logged once and leaves the k unchanged.
        """
        found = None
        for control in self.controls:
            seen = stamp(control)
            if seen is not None and seen != self._seen.get(control):
                self._seen[control] = seen
                k = self._obey(control)
                found = k if k is not None else found
        return found

    def _obey(self, control: str) -> int | None:
        try:
            k, request = read_control(control, most=self.started)
        except Invalid as error:
            self._complain(f"{control}: {error}; k stays {self.k}")
            return None
        self._complained = False
        self.k = k
        logger.info("k is %d from now on; the server was started with %d", k, self.started)
        self._write(request)
        return k

    def _write(self, request: str) -> None:
        """Record the k in use, atomically; a full disk does not stop the server."""
        document = {
            "schema": 1,
            "started_k": self.started,
            "k": self.k,
            "id": request,
            "since": round(time.time(), 3),
        }
        fresh = f"{self.used}.new"
        try:
            Path(fresh).write_text(json.dumps(document) + "\n", encoding="utf-8")
            os.replace(fresh, self.used)  # noqa: PTH105
        except OSError as error:
            with contextlib.suppress(OSError):
                Path(fresh).unlink()
            self._complain(f"cannot write {self.used}: {error.strerror}")

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._complained = True
            logger.warning("live k: %s", what)


def stamp(path: str) -> tuple[int, int, int] | None:
    """Return what tells one state of a file from the next; None when it is missing."""
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - a step has no time for Path
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def read_control(path: str, *, most: int) -> tuple[int, str]:
    """Return the k that a control file asks for, 0 to `most`, and the id of the request. Raises Invalid.

    Neither a link, a pipe nor a large file is read, and nothing is waited for.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Invalid(f"cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Invalid("is not a file")
        data = os.read(descriptor, MOST_BYTES + 1)
    except OSError as error:
        raise Invalid(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(data) > MOST_BYTES:
        raise Invalid(f"is longer than {MOST_BYTES} bytes")
    return parse_control(data, most=most)


def parse_control(data: bytes, *, most: int) -> tuple[int, str]:
    """Return k and the request's id. Raises Invalid for anything but {"k": 0 to most, "id": "…"}."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise Invalid("is not JSON") from None
    if not isinstance(document, dict):
        raise Invalid("is not a JSON object")
    k, request = document.get("k"), document.get("id", "")
    if type(k) is not int or not 0 <= k <= most:
        raise Invalid(f"k is not a whole number from 0 to {most}")
    if not isinstance(request, str) or len(request) > MOST_ID:
        raise Invalid(f"id is not a text of at most {MOST_ID} characters")
    return k, request


class LiveKScheduler:
    """Goes before one of vLLM's schedulers, and sets its k before each step."""

    dynamic_sd_lookup: list[int] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raise RuntimeError where vLLM has dropped the table of k, so that the server does not start."""
        super().__init__(*args, **kwargs)
        table = self.dynamic_sd_lookup
        if table is None:  # it does so with data parallelism
            raise RuntimeError("live_k: vLLM does not use num_speculative_tokens_per_batch_size in this configuration")
        self._rows = len(table)
        started: int = self.num_spec_tokens  # type: ignore[attr-defined]  # of vLLM's class
        self._live_k = LiveK(os.environ[CONTROL], os.environ[USED], started=started, watch=os.environ.get(WATCH))
        self.dynamic_sd_lookup = [started] * self._rows

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Take over a new k, if there is one, and schedule the step."""
        k = self._live_k.look()
        if k is not None:
            self.dynamic_sd_lookup = [k] * self._rows
        return super().schedule(*args, **kwargs)  # type: ignore[misc]  # of vLLM's class


def scheduler(*args: Any, **kwargs: Any) -> Any:
    """Return a scheduler on the class of vLLM's that goes with the configuration.

    As SchedulerConfig.get_scheduler_cls chooses where no class is named (vllm/config/scheduler.py, 0.32.0): with
    asynchronous scheduling a subclass of the plain Scheduler would be wrong.
    """
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # type: ignore[import-not-found]
    from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]

    base = AsyncScheduler if kwargs["vllm_config"].scheduler_config.async_scheduling else Scheduler
    return type("LiveKScheduler", (LiveKScheduler, base), {})(*args, **kwargs)
