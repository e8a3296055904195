"""Run probes against vLLM trees, in an environment with torch and transformers but without vLLM.

One JSON job per line on stdin, one JSON answer per line on stdout:

    {"path": ["/overlay", "/tree"], "probes": {"some-patch": "/…/probe.py"}}
    {"some-patch": {"state": "open" | "closed" | "failed", "seen": "what the probe saw"}}

A job with `"keep": "/folder"` has probes of numbers: the first such job keeps there what they computed, and the next
one compares. Their states are counted, same, different and failed.

Importing vLLM's dependencies takes most of the time of an import. Each job therefore runs in a fork of this process,
and this process imports the dependencies that a job imported before the next one. This file runs alone: it imports
only the standard library by name, and nothing of gemmaspec.
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
from pathlib import Path
from typing import Any

LIMIT_S = 600  # for one job; imports are slow on a busy machine


def main() -> None:
    """Answer jobs until stdin ends."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork inherits no threads
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM's own output must not mix with the answers
    for line in sys.stdin:
        job = json.loads(line)
        answer = in_fork(job)
        for name in answer.pop("imported", ()):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def in_fork(job: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a child process; if it dies, every probe counts as failed."""
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
    seen = f"the process of the probe died with wait status {status}"
    return {name: {"state": "failed", "seen": seen} for name in job["probes"]}


def look(job: dict[str, Any]) -> dict[str, Any]:
    """Run the probes of a job, one after the other, in this process."""
    known = set(sys.modules)
    sys.path[:0] = job["path"]
    answer: dict[str, Any] = {name: one(name, file, job.get("keep")) for name, file in job["probes"].items()}
    if "keep" in job:
        return answer  # Triton, once imported, would be there for every later job
    imported = sorted(set(sys.modules) - known)
    others = [name for name in imported if name.partition(".")[0] not in ("vllm", "__main__")]
    return {**answer, "imported": others}


def one(name: str, file: str, keep: str | None) -> dict[str, str]:
    """Run one probe: its function `probe` returns whether the bug is present, and what it saw."""
    try:
        if keep is not None:
            return compared(runpy.run_path(file)["numbers"](), Path(keep) / f"{name}.pt")
        is_open, seen = runpy.run_path(file)["probe"]()
        return {"state": "open" if is_open else "closed", "seen": str(seen)}
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename}:{place.lineno}"
        return {"state": "failed", "seen": f"{type(error).__name__}: {error} ({where})"}


def compared(results: Any, kept: Path) -> dict[str, str]:
    """Keep tensors, or compare them with those that are kept; `results` yields name, tensor and bound.

    A bound is a share of the largest value. What is not a number is never the same.
    """
    import torch  # type: ignore[import-not-found]

    batches = {name: (tensor, bound) for name, tensor, bound in results}
    if not kept.exists():
        torch.save(batches, kept)
        return {"state": "counted", "seen": f"{len(batches)} batches"}
    before, worst = torch.load(kept), (0.0, "")
    if before.keys() != batches.keys():
        return {"state": "failed", "seen": "the two trees computed different batches"}
    for name, (tensor, bound) in batches.items():
        first = before[name][0]
        off = ((tensor - first).abs().max() / first.abs().max()).item()
        if not off <= bound:
            return {"state": "different", "seen": f"{name}: {off:.1e} off, where {bound:.1e} is rounding"}
        worst = max(worst, (off / bound, f"{off:.1e} of the largest value ({name}; {bound:.1e} is rounding)"))
    return {"state": "same", "seen": f"{len(batches)} batches; the largest difference is {worst[1] or '0'}"}


if __name__ == "__main__":
    main()
