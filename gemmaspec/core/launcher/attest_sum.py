"""Judges what the processes of a server attest; runs inside vLLM, and in the tests. Standard library, Python 3.10+.

RUN/attest/processes/PID.json is one process's own word, RUN/attested.json the verdict on all, which everybody else only
reads. Anything may have been written there, so nothing is followed, waited for or read beyond a limit, and a word
counts only while its process lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_BYTES = 256 * 1024
MOST_PROCESSES = 512
MOST_ROWS = 400
# What vLLM calls its processes (utils/system_utils.py set_process_title, every release). A coordinator runs no model.
TITLES = ("VLLM::EngineCore", "VLLM::Worker", "VLLM::APIServer")
STATES = ("attested", "different", "not imported")
# What a process is, by the door that it went through.
API_SERVER, ENGINE_CORE, WORKER = "API server", "engine core", "worker"
# By module: a function that is called once the plugins are in, or before a process serves; whether to look after the
# call; and what the process then is. The same in every release; a class of the module may hold it.
DOORS = {
    "vllm.plugins": ("load_general_plugins", True, ""),
    "vllm.v1.worker.gpu_worker": ("compile_or_warm_up_model", True, WORKER),
    "vllm.v1.worker.cpu_worker": ("compile_or_warm_up_model", True, WORKER),
    "vllm.v1.engine.core": ("run_busy_loop", False, ENGINE_CORE),
    "uvicorn.server": ("serve", False, API_SERVER),
}
RUNS_IN = {  # by the beginning of a module's name; any other module may run in each process
    "vllm.entrypoints.": API_SERVER,
    "vllm.v1.core.": ENGINE_CORE,
    "vllm.v1.worker.": WORKER,
    "vllm.v1.spec_decode.": WORKER,
    "vllm.v1.sample.": WORKER,
    "vllm.v1.attention.": WORKER,
    "vllm.model_executor.": WORKER,
}


def sum_up(folder: str, targets: Mapping[str, Any]) -> dict[str, Any]:
    """Write the verdict on all living processes into the folder's parent, and return it; one process at a time."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(os.path.join(folder, "sum.lock"), flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = [process for process in _words(folder) if process["since"] == born(process["pid"]) != ""]
        known = {word["pid"] for word in words if word["roles"]}
        leader = targets["leader"]
        silent = [f"{name} (pid {pid})" for pid in [leader, *below(leader)] if (name := title(pid)).startswith(TITLES)
                  and pid not in known]  # fmt: skip
        verdict = judged(words, silent, targets)
        write(os.path.join(os.path.dirname(folder), "attested.json"), verdict)
    finally:
        os.close(lock)
    return verdict


def judged(words: Sequence[Mapping[str, Any]], silent: Sequence[str], targets: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether all processes run the patched functions, why not, and what each has."""
    processes = list(map(_process, words))
    different = [f"{_titled(process)}: {what}" for process in processes for what in process["different"]]
    problems = [*different, *(f"{name} has not looked before it was ready" for name in silent)]
    problems += _unseen(words, targets) if words else ["no process has attested its patched functions"]
    functions = {name for process in processes for name in process["functions"]}
    optional = [f"{_titled(process)}: optional patch: {what}" for process in processes for what in process["optional"]]
    notes = [*optional, *(what for process in processes for what in process["wrapped"])]
    state = "attested"
    text = f"attested: {_many(len(functions), 'function')} in {_many(len(processes), 'process')}"
    if problems:
        state = "different" if different else "not attested"
        text = f"NOT ATTESTED: {'; '.join(problems[:3])}"
    return {
        "schema": 2,
        "state": state,
        "text": text,
        "problems": problems,
        "notes": list(dict.fromkeys(notes)),
        "processes": processes,
    }


def _imported(module: str, word: Mapping[str, Any]) -> bool:
    return any(row["module"] == module and row["state"] != "not imported" for row in word["rows"])


def _unseen(words: Sequence[Mapping[str, Any]], targets: Mapping[str, Any]) -> Iterator[str]:
    """Yield each role without a process, and each patched module that has to run and was not imported where it runs."""
    if targets["headless"]:
        expects = {WORKER}
    else:
        expects = {WORKER, ENGINE_CORE, API_SERVER}
    there = {role for word in words for role in word["roles"]}
    yield from (f"no {role} has looked before it was ready" for role in sorted(expects - there))
    for module in (file["module"] for file in targets["files"] if file["runs"]):
        role = next((role for begins, role in RUNS_IN.items() if module.startswith(begins)), "")
        if role and role not in there:
            continue  # told above, or the role of another machine
        seen = [_imported(module, word) for word in words if not role or role in word["roles"]]
        if not (all(seen) if role else any(seen)):
            yield f"{module}: imported by no {role or 'process'}"


def _process(word: Mapping[str, Any]) -> dict[str, Any]:
    functions: set[str] = set()
    different: list[str] = []
    optional: list[str] = []
    wrapped: list[str] = []
    for row in word["rows"]:
        # a row without a function is about a whole module
        name = ".".join(part for part in (row["module"], row["function"]) if part)
        if row["state"] == "attested" and row["function"]:
            functions.add(name)
        if row["state"] == "different":
            what = f"{name}: {row.get('found', '')}"
            (different if row["required"] else optional).append(what)
        wrapped += [f"{name} is {by}" for by in row.get("wrapped", ())]
    process = {name: word[name] for name in ("pid", "title", "roles", "cost_ms")}
    lists = {"different": different, "optional": optional, "wrapped": wrapped}
    return {**process, "functions": sorted(functions), **lists}


def _titled(process: Mapping[str, Any]) -> str:
    return f"{process['title'] or 'a process'} (pid {process['pid']})"


def _many(count: int, name: str) -> str:
    if count == 1:
        return f"1 {name}"
    return f"{count} {name}{'es' if name.endswith('s') else 's'}"


def _words(folder: str) -> Iterator[dict[str, Any]]:
    inside = os.path.join(folder, "processes")
    names = sorted(name for name in os.listdir(inside) if name.endswith(".json"))[:MOST_PROCESSES]
    for name in names:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            yield _checked(json.loads(_read(os.path.join(inside, name))))


def _checked_row(row: Any) -> dict[str, Any]:
    """Return what a process says of one patched name, in bounds; an unknown state counts as a difference."""
    checked = {
        "module": str(row["module"])[:200],
        "function": str(row["function"])[:200],
        "state": row["state"] if row["state"] in STATES else "different",
        "required": row["required"] is not False,
    }
    if "found" in row:
        checked["found"] = str(row["found"])[:1000]
    if "wrapped" in row:
        checked["wrapped"] = [str(wrapper)[:400] for wrapper in row["wrapped"]][:8]
    return checked


def _checked(answer: Any) -> dict[str, Any]:
    """Return a process's word with the fields and types that it must have. Raise ValueError, KeyError or TypeError."""
    if type(answer["pid"]) is not int or answer["schema"] != 2 or len(answer["rows"]) > MOST_ROWS:
        raise ValueError
    rows = [_checked_row(row) for row in answer["rows"]]
    texts = {name: str(answer[name])[:100] for name in ("since", "title", "python")}
    roles = [role for role in (API_SERVER, ENGINE_CORE, WORKER) if role in list(answer["roles"])]
    return {"pid": answer["pid"], **texts, "cost_ms": float(answer["cost_ms"]), "roles": roles, "rows": rows}


def _read(path: str) -> bytes:
    """Return a short file's bytes. Raise OSError for a link, ValueError for anything else."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(opened).st_mode):
            data = os.read(opened, MOST_BYTES + 1)
        else:
            data = b""
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
    stat = _stat(pid)
    if len(stat) > 19 and stat[0] not in "ZX":
        return stat[19]
    return ""


def title(pid: int) -> str:
    """Return how a process calls itself: VLLM::EngineCore, or the beginning of its command."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [word.decode("utf-8", "replace") for word in file.read(4096).split(b"\0") if word]
    except OSError:
        return ""
    if words and words[0].startswith("VLLM::"):
        return words[0].strip()[:60]
    names = [os.path.basename(word) for word in words]
    return " ".join(names[1:3] if len(names) > 1 and names[0].startswith("python") else names[:2])[:60]


def below(pid: int) -> list[int]:
    """Return the processes below one, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and len(stat := _stat(int(name))) > 1:
            children.setdefault(int(stat[1]), []).append(int(name))
    found_below, waiting = [], [pid]
    while waiting:
        more = [child for child in children.get(waiting.pop(0), []) if child not in found_below]
        found_below += more
        waiting += more
    return found_below
