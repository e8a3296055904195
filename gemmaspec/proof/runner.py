"""Runs probes against vLLM trees, inside an environment that has torch and transformers but no vLLM.

One job a line on stdin, one answer a line on stdout, both JSON:

    {"path": ["/overlay", "/tree"], "probes": {"some-patch": "/…/probe.py"}}
    {"some-patch": {"state": "open" | "closed" | "failed", "seen": "what the probe saw"}}

Most of the time an import of vLLM takes is for modules of others. Each job therefore runs in a fork of this process,
and what it has imported of others is imported here before the next one. Only the standard library is imported by
name, and nothing of gemmaspec: this file is run alone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import traceback
from typing import Any

LIMIT_S = 600  # for one job; imports are slow on a machine that is busy with other things


def main() -> None:
    """Answer jobs until stdin ends."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork inherits no threads
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints is not an answer
    for line in sys.stdin:
        job = json.loads(line)
        answer = in_fork(job)
        for name in answer.pop("imported", ()):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def in_fork(job: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a child process; if it dies, every probe has failed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(LIMIT_S)
        try:
            data = json.dumps(look(job)).encode()
            while data:
                data = data[os.write(write, data) :]
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if text:
        answer: dict[str, Any] = json.loads(text)
        return answer
    seen = f"the process of the probe ended by itself, wait status {status}"
    return {name: {"state": "failed", "seen": seen} for name in job["probes"]}


def look(job: dict[str, Any]) -> dict[str, Any]:
    """Run the probes of a job, one after the other, in this process."""
    known = set(sys.modules)
    sys.path[:0] = job["path"]
    answer: dict[str, Any] = {name: one(file) for name, file in job["probes"].items()}
    others = {name for name in set(sys.modules) - known if name.partition(".")[0] not in ("vllm", "__main__")}
    return {**answer, "imported": sorted(others)}


def one(file: str) -> dict[str, str]:
    """Run one probe: its function `probe` returns whether the hole is open, and what it saw."""
    try:
        is_open, seen = runpy.run_path(file)["probe"]()
        return {"state": "open" if is_open else "closed", "seen": str(seen)}
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}:{place.lineno}"
        return {"state": "failed", "seen": f"{type(error).__name__}: {error} ({where})"}


if __name__ == "__main__":
    main()
