"""Whether the installed vLLM has a patch's bug, by the patch's own probe, which runs in this Python before the server.

The launcher loads this file from its own folder. A verdict is kept for exactly what was asked: vLLM's files, the
packages of this Python, the variables that vLLM reads, and the probe. A probe gets no secret. It runs in a session of
its own, and whatever it began ends with it. Standard library, Python 3.10+.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import selectors
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LIMIT_S = 300.0  # a probe imports vLLM, which takes a minute from a cold disk
FAILED_S = 3600.0  # so long a failure is not asked again: restarts are not slower than the first start
GONE_S = 5.0  # so long it is waited for what was killed
MOST = 64 * 1024  # bytes of a verdict
STATES = ("open", "closed", "failed")
GIVEN = ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH")
KEYED = ("LD_LIBRARY_PATH", "PYTHONPATH")  # those of GIVEN that may change what vLLM does
SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
SETS = dict.fromkeys(("VLLM_NO_USAGE_STATS", "HF_HUB_OFFLINE", "OMP_NUM_THREADS"), "1")
SETS |= {"VLLM_LOGGING_LEVEL": "CRITICAL", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
HOMES = ("HOME", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "TORCHINDUCTOR_CACHE_DIR")
MARK = "LAUNCHER_PROBE"  # in the environment of a probe and of all that it begins
RUNS = """
import importlib.metadata, json, os, shutil, signal, sys, threading
package, home, answers, living = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
own, names = os.getpid(), {"__name__": "probe", "__file__": os.path.join(home, "probe", "probe.py")}

def outlived():
    os.read(living, 1)  # nothing is ever written: it returns when the launcher has ended
    shutil.rmtree(home, ignore_errors=True)
    os.killpg(own, signal.SIGKILL)

def inside(file):
    places = (os.path.abspath(file), os.path.abspath(package)), (os.path.realpath(file), os.path.realpath(package))
    return any(one.startswith(folder + os.sep) for one, folder in places)

threading.Thread(target=outlived, daemon=True).start()
sys.path[0] = os.path.join(home, "probe")
try:
    others = [one for one in importlib.metadata.entry_points(group="vllm.general_plugins")
              if one.value.partition(":")[0].partition(".")[0] != "vllm"]
    if others:
        from vllm.plugins import load_general_plugins
        load_general_plugins()
    with open(names["__file__"], encoding="utf-8") as text:
        exec(compile(text.read(), "probe.py", "exec"), names)
    is_open, seen = names["probe"]()
    if type(is_open) is not bool:
        raise TypeError(f"it returned {is_open!r}")
    found = {"state": "open" if is_open else "closed", "seen": str(seen)}
    files = [one.__file__ for name, one in list(sys.modules.items())
             if name.partition(".")[0] == "vllm" and getattr(one, "__file__", None)]
    if not files or not all(map(inside, files)):
        found = {"state": "failed", "seen": "it imported another vllm"}
except BaseException as error:
    found = {"state": "failed", "seen": f"{type(error).__name__}: {error}"}
if os.getpid() == own:  # a fork of it has no say
    found["seen"] = found["seen"][:2000] or "nothing"
    os.write(answers, json.dumps(found).encode() + b"\\n")
os._exit(0)
"""


def probed(
    probe: str,
    package: Path,
    cache_dir: Path,
    environment: Mapping[str, str],
    beside: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
    *,
    python: str = sys.executable,
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """Return the verdict of a patch's probe on the installed vLLM: its `state`, and what it `seen`.

    "failed" is whatever goes wrong. `beside` are modules that the probe imports. `kept` names the file of a verdict
    that was there already; then nothing was run.
    """
    given = variables(environment)
    digest = digest_of(probe, beside or {}, package, given)
    kept = cache_dir / "probes" / f"{digest}.json"
    found = read(kept, digest)
    if found is not None:
        return {"state": found["state"], "seen": found["seen"], "kept": str(kept)}
    say(f"running its probe on {package}: half a minute as a rule, at most {limit_s / 60:.0f} minutes")
    with tempfile.TemporaryDirectory(prefix="gemmaspec-probe-", ignore_cleanup_errors=True) as home:
        verdict, why = run(probe, beside or {}, package, Path(home), given, python, limit_s)
    state = verdict.get("state")
    if state in STATES:
        found = {"state": state, "seen": str(verdict.get("seen"))}
    else:
        found = {"state": "failed", "seen": why}
    keep(kept, digest, found)
    return found


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a probe gets of the server's environment: what vLLM reads, and no secret."""
    wanted = [name for name in environment if name in GIVEN or name.startswith("VLLM_")]
    return {name: environment[name] for name in sorted(wanted) if not SECRET.search(name)}


def digest_of(probe: str, beside: Mapping[str, str], package: Path, given: Mapping[str, str]) -> str:
    """Return the digest of everything that a verdict depends on."""
    keyed = {name: value for name, value in given.items() if name in KEYED or name not in GIVEN}
    asked = [sys.version, probe, sorted(beside.items()), sorted(keyed.items()), list(distributions(sys.path))]
    digest = hashlib.sha256(json.dumps(asked).encode("utf-8", "surrogatepass"))
    for file in sorted(package.rglob("*.py")):
        if file.is_file():
            row = f"{file.relative_to(package)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n"
            digest.update(row.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def distributions(path: Sequence[str]) -> Iterator[str]:
    """Yield the names of the folders with the metadata of installed packages; a name holds the version."""
    for entry in path:
        try:
            names = sorted(one.name for one in Path(entry or ".").iterdir())
        except OSError:
            continue
        yield from (name for name in names if name.endswith((".dist-info", ".egg-info")))


def read(file: Path, digest: str) -> dict[str, Any] | None:
    """Return a kept verdict on what has this digest; None for any other file, and for a failure that is old."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(opened, "rb") as data:
            facts = os.fstat(opened)
            others = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or facts.st_uid not in (0, os.geteuid())
            if others or not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST:
                return None
            found = json.loads(data.read(MOST + 1))
        if not isinstance(found, dict) or found.get("of") != digest or found.get("state") not in STATES:
            return None
        at, seen = found.get("at"), found.get("seen")
        if not isinstance(seen, str) or not seen or not isinstance(at, (int, float)):
            return None
        if found["state"] == "failed" and not 0 <= time.time() - at < FAILED_S:
            return None
        return found
    return None


def keep(file: Path, digest: str, found: Mapping[str, str]) -> None:
    """Keep a verdict, completely or not at all; a folder that cannot be written keeps none."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}.new")
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(opened, "w", encoding="utf-8") as data:
            data.write(json.dumps({"of": digest, "at": time.time(), **found}))
        fresh.replace(file)


def run(
    probe: str,
    beside: Mapping[str, str],
    package: Path,
    home: Path,
    given: Mapping[str, str],
    python: str,
    limit_s: float,
) -> tuple[dict[str, Any], str]:
    """Run a probe in a folder of its own; return its verdict, empty for none, and why there is none."""
    folder = home / "probe"
    folder.mkdir()
    for name, text in {**beside, "probe.py": probe}.items():
        (folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    mark = secrets.token_hex(16)
    environment = {**given, **SETS, **dict.fromkeys(HOMES, str(home)), MARK: mark}
    answers, answering = os.pipe()
    living, life = os.pipe()
    words = [python, "-c", RUNS, str(package), str(home), str(answering), str(living)]
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=home,
            pass_fds=(answering, living),
            start_new_session=True,
        )
    except OSError as error:
        return {}, str(error)[:300]
    finally:
        os.close(answering)
        os.close(living)
    try:
        return listen(process, answers, limit_s)
    finally:
        end(process, mark)
        os.close(life)
        os.close(answers)


def listen(process: subprocess.Popen[bytes], answers: int, limit_s: float) -> tuple[dict[str, Any], str]:
    """Return the first line that comes on the pipe of answers, as an object, or why there is none."""
    assert process.stderr is not None
    ends = time.monotonic() + limit_s
    answer, told = b"", b""
    with selectors.DefaultSelector() as selector:
        selector.register(answers, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        ended = False
        while b"\n" not in answer and len(answer) <= MOST:
            ready = selector.select(0.0 if ended else min(0.2, max(0.0, ends - time.monotonic())))
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fd == answers:
                    answer += data
                else:
                    told = (told + data)[-4096:]
            if ended and not ready:
                break
            ended = exit_code(process) is not None
            if not ended and time.monotonic() >= ends:
                return {}, f"it gave no answer within {limit_s:.0f} s"
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(answer.partition(b"\n")[0])
        if isinstance(found, dict):
            return found, "its answer is not complete"
    last = told.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it printed nothing"]
    return {}, f"exit code {exit_code(process)}: {last[0][:300]}"


def exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Return how a probe ended, None if it runs. It is not waited for: while it is a zombie, its number is its own."""
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return found.si_status
    return -found.si_status


def end(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a probe and all that it began, in its session or out of it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stderr is not None:
        process.stderr.close()
    ends = time.monotonic() + GONE_S
    while pids := list(marked(mark)):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= ends:
            return
        time.sleep(0.02)  # a killed process is there until the kernel has taken it down


def marked(mark: str) -> Iterator[int]:
    """Yield the processes whose environment has a probe's mark."""
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
