"""Sums up what the processes of a server attest; runs inside vLLM, and in the tests. Standard library, Python 3.10+.

RUN/attest/processes/PID.json is one process's own word, RUN/attested.json the sum. Anything may have been written
there, so nothing is followed, waited for or read beyond a limit, and a file counts only while its process lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from typing import Any

MOST_BYTES = 64 * 1024
MOST_PROCESSES = 512
MOST_ROWS = 200
TITLE = "VLLM::"  # what vLLM calls its own processes (utils/system_utils.py set_process_title, every release)
STATES = ("attested", "different", "not imported")


def sum_up(folder: str, leader: int) -> dict[str, Any]:
    """Write the sum of all living processes into the folder's parent, and return it."""
    rows = [row for row in _processes(folder) if row["since"] == born(row["pid"]) != ""]
    known = {row["pid"] for row in rows}
    silent = [{"pid": pid, "title": title(pid)} for pid in [leader, *below(leader)] if pid not in known]
    found = {
        "schema": 1,
        "now": time.monotonic(),
        "processes": sorted(rows, key=lambda row: int(row["pid"])),
        "silent": [one for one in silent if str(one["title"]).startswith(TITLE)],
        "missing": missing(rows),
    }
    write(os.path.join(os.path.dirname(folder), "attested.json"), found)
    return found


def missing(processes: list[dict[str, Any]]) -> list[str]:
    """Return the modules of required patches that no process has imported, so that something else runs."""
    rows = [row for process in processes for row in process["rows"] if row["required"]]
    seen = {row["module"] for row in rows if row["state"] != "not imported"}
    return sorted({str(row["module"]) for row in rows} - seen)


def _processes(folder: str) -> Iterator[dict[str, Any]]:
    inside = os.path.join(folder, "processes")
    names = sorted(name for name in os.listdir(inside) if name.endswith(".json"))[:MOST_PROCESSES]
    for name in names:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            yield _checked(json.loads(_read(os.path.join(inside, name))))


def _checked(found: Any) -> dict[str, Any]:
    """Return a process's word with the fields and types that it must have. Raise ValueError, KeyError or TypeError."""
    if type(found["pid"]) is not int or found["schema"] != 1 or len(found["rows"]) > MOST_ROWS:
        raise ValueError
    rows = [
        {
            "module": str(row["module"])[:200],
            "function": str(row["function"])[:200],
            "state": row["state"] if row["state"] in STATES else "different",
            "required": row["required"] is not False,
            **({"found": str(row["found"])[:1000]} if "found" in row else {}),
            **({"wrapped": [str(one)[:400] for one in row["wrapped"]][:8]} if "wrapped" in row else {}),
        }
        for row in found["rows"]
    ]
    numbers = {name: float(found[name]) for name in ("checked", "cost_ms")}
    texts = {name: str(found[name])[:100] for name in ("since", "title", "python")}
    return {"pid": found["pid"], **texts, **numbers, "looks": int(found["looks"]), "rows": rows}


def _read(path: str) -> bytes:
    """Return a short file's bytes. Raise OSError for a link, ValueError for anything else."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = os.read(opened, MOST_BYTES + 1) if stat.S_ISREG(os.fstat(opened).st_mode) else b""
    finally:
        os.close(opened)
    if not data or len(data) > MOST_BYTES:
        raise ValueError
    return data


def write(path: str, document: Any) -> None:
    """Write JSON completely or not at all; a process of the same pid in another namespace has another name."""
    fresh = f"{path}.{os.getpid()}.new"
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")
        os.replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, …; nothing for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def born(pid: int) -> str:
    """Return when a process began, in ticks since the boot; "" for one that is gone or has ended."""
    found = _stat(pid)
    return found[19] if len(found) > 19 and found[0] not in "ZX" else ""


def title(pid: int) -> str:
    """Return how a process calls itself: VLLM::EngineCore, or the beginning of its command."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [word.decode("utf-8", "replace") for word in file.read(4096).split(b"\0") if word]
    except OSError:
        return ""
    if words and words[0].startswith(TITLE):
        return words[0].strip()[:60]
    names = [os.path.basename(word) for word in words]
    return " ".join(names[1:3] if len(names) > 1 and names[0].startswith("python") else names[:2])[:60]


def below(pid: int) -> list[int]:
    """Return the processes below one, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and len(found := _stat(int(name))) > 1:
            children.setdefault(int(found[1]), []).append(int(name))
    found_below, waiting = [], [pid]
    while waiting:
        more = [one for one in children.get(waiting.pop(0), []) if one not in found_below]
        found_below += more
        waiting += more
    return found_below


def is_first(folder: str, pid: int) -> bool:
    """Return whether no process above this one attests: then it is the one whose exit code the server has."""
    attests = {row["pid"] for row in _processes(folder)}
    above = int(found[1]) if len(found := _stat(pid)) > 1 else 0
    while above > 1 and (found := _stat(above)):
        if above in attests:
            return False
        above = int(found[1])
    return above not in attests
