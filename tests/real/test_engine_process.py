"""The process engine with a fake launcher and a fake server; both are real processes."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gemmaspec.cli.app import run as run_cli
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, StartFailed
from gemmaspec.core.files import UnreadableFile
from gemmaspec.run.engine import proc, record
from gemmaspec.run.engine import process as process_module
from gemmaspec.run.engine.detached import signals_wait
from gemmaspec.run.engine.process import ProcessEngine, environment, launch_args
from gemmaspec.run.engine.record import without_key
from gemmaspec.run.engine.server import Server
from tests.support.real import RUN, free_port

FAKE_LAUNCHER = """
import fcntl, json, os, sys
args = sys.argv[1:sys.argv.index("--")]
command = sys.argv[sys.argv.index("--") + 1:]
run_dir = args[args.index("--run-dir") + 1]
lock = os.open(run_dir + "/lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.set_inheritable(lock, True)
with open(run_dir + "/report.new", "w") as file:
    json.dump({"schema": 1, "pid": os.getpid(), "args": args, "cwd": os.getcwd()}, file)
os.replace(run_dir + "/report.new", run_dir + "/report.json")
os.execv(command[0], command)
"""

# Says what it was told, then waits; `children` live in its session, as vLLM's engine and workers do.
FAKE_SERVER = """
import os, signal, subprocess, sys, time
wait = [sys.executable, "-c", "import time; print('child ready', flush=True); time.sleep(999)"]
stubborn = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN);"
            "print('child ready', flush=True); time.sleep(999)"]
mode = sys.argv[1]
if mode == "exit":
    print("bye", flush=True); sys.exit(int(sys.argv[2]))
if mode in ("children", "stubborn"):
    subprocess.Popen(wait); subprocess.Popen(stubborn if mode == "stubborn" else wait)
if mode == "orderly":
    def leave(*_):
        print("leader asked", flush=True); time.sleep(0.5); print("leader leaves", flush=True); os._exit(0)
    asked = "lambda *_: (print('child asked', flush=True), os._exit(0))"
    subprocess.Popen([sys.executable, "-c", f"import os, signal, time; signal.signal(15, {asked});"
                      "print('child ready', flush=True); time.sleep(999)"])
    signal.signal(signal.SIGTERM, leave)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("ready", flush=True)
if mode == "lingers":  # its first thread has ended, as after SIGKILL; another holds the lock until it is let go
    import ctypes, pathlib, threading
    def linger():
        while not pathlib.Path(sys.argv[2]).exists():
            time.sleep(0.01)
        os._exit(0)
    threading.Thread(target=linger).start()
    ctypes.CDLL(None).pthread_exit(None)
if mode == "large":  # many threads and much memory, so that the kernel takes a while to end it
    import threading
    held = bytearray(300_000_000)
    for _ in range(60):
        threading.Thread(target=time.sleep, args=(999,)).start()
if mode == "say":
    sys.stdout.buffer.write(eval(sys.argv[2])); sys.stdout.flush(); sys.exit(0)
time.sleep(999)
"""


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def _make(*arguments: str, name: str = "demo", **fields: Any) -> Server:
        folder = tmp_path / "state" / "stacks" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "launch.py").write_text(FAKE_LAUNCHER)
        (folder / "plan.json").write_text("{}")
        (folder / "server.py").write_text(FAKE_SERVER)
        command = (sys.executable, str(folder / "server.py"), *(arguments or ("wait",)))
        given = {"port": free_port(), "stop_grace_s": 60.0, "python": Path(sys.executable), "command": command}
        made.append(Server(name=name, folder=folder, model="m", **{"speculates": True, **given, **fields}))
        return made[-1]

    yield _make
    for server in made:
        ProcessEngine().stop(dataclasses.replace(server, stop_grace_s=0))


@pytest.fixture
def engine(make: Callable[..., Server]) -> Iterator[ProcessEngine]:
    engine = ProcessEngine()
    yield engine
    for run_dir, child in engine._children.items():
        if last := record.read(run_dir):
            record.end(last, grace_s=0)
        child.kill()
        child.wait()


def wait_for(condition: Callable[[], Any], *, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def said(engine: ProcessEngine, server: Server, line: str, *, times: int = 1) -> None:
    wait_for(lambda: list(engine.logs(server)).count(line) >= times)


def leader(server: Server) -> int:
    found = record.read(server.run_dir)
    assert found
    assert found.pid
    return found.pid


def session(sid: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == sid and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except (ProcessLookupError, psutil.Error):
            continue
    return found


# --- its life ---


def test_a_server_starts_runs_and_is_stopped(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make()
    assert engine.state(server).status == "absent"
    engine.preflight(server)
    engine.start(server)
    assert engine.state(server).status == "running"
    assert engine.state(server).detail == f"pid {leader(server)}"
    engine.preflight(server)
    assert engine.stop(server) is True
    assert engine.state(server).status == "absent"
    assert engine.stop(server) is False


def test_stopping_a_stack_that_was_never_started_creates_nothing(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    server = make()
    assert engine.stop(server) is False
    assert not server.run_dir.exists()


def test_a_second_start_is_refused_and_leaves_the_first_alone(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    server = make()
    engine.start(server)
    first = leader(server)
    for another in (engine, ProcessEngine()):
        with pytest.raises(StartFailed, match=f"already running \\(pid {first}\\)"):
            another.start(server)
    assert leader(server) == first
    assert engine.state(server).status == "running"


def test_of_two_starts_at_the_same_moment_one_wins(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make()
    refused: list[Exception] = []

    def start() -> None:
        try:
            engine.start(server)
        except StartFailed as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3
    assert len(session(leader(server))) == 1


@pytest.mark.parametrize(
    ("end", "code"),
    [(("exit", "0"), 0), (("exit", "7"), 7), (("wait",), 128 + signal.SIGKILL)],
)
def test_the_exit_code_is_known_to_whoever_started_it(
    engine: ProcessEngine, make: Callable[..., Server], end: tuple[str, ...], code: int
) -> None:
    server = make(*end)
    engine.start(server)
    if end == ("wait",):
        os.kill(leader(server), signal.SIGKILL)
    wait_for(lambda: engine.state(server).status == "exited")
    assert engine.state(server).exit_code == code
    assert ProcessEngine().state(server).exit_code is None
    assert engine.stop(server) is False
    assert engine.state(server).status == "absent"


def test_it_can_be_started_again_after_it_ended_by_itself(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    engine.start(make("exit", "3"))
    server = make("wait")
    wait_for(lambda: engine.state(server).status == "exited")
    engine.start(server)
    assert engine.state(server).status == "running"


# --- outliving the shell ---

STARTER = """
import os, sys, time
from pathlib import Path
from gemmaspec.run.engine import record
from gemmaspec.run.engine.process import ProcessEngine
from gemmaspec.run.engine.server import Server
folder, port, then = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
server = Server(name=folder.name, folder=folder, port=port, model="m", speculates=True,
                python=Path(sys.executable), command=(sys.executable, str(folder / "server.py"), "wait"))
if then in ("ctrl-c", "hang-up"):
    os.open(sys.argv[4], os.O_RDWR)  # the first terminal of a session leader becomes its controlling one
if then == "die-between":
    write, calls = record.write, []
    def kill_the_second_time(run_dir, made):
        calls.append(made)
        if len(calls) == 2:
            os.kill(os.getpid(), 9)
        write(run_dir, made)
    record.write = kill_the_second_time
ProcessEngine().start(server)
print("started", flush=True)
if then != "exit":
    time.sleep(999)
"""


def starter(server: Server, then: str, *terminal: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            STARTER,
            str(server.folder),
            str(server.port),
            then,
            *terminal,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def test_it_outlives_the_command_that_started_it(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make()
    shell = starter(server, "exit")
    shell.communicate(timeout=30)
    said(engine, server, "ready")
    assert engine.state(server).status == "running"
    assert engine.stop(server) is True


def test_it_outlives_a_hang_up_of_the_session_that_started_it(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    server = make()
    shell = starter(server, "wait")
    assert shell.stdout
    assert shell.stdout.readline() == "started\n"
    os.killpg(shell.pid, signal.SIGHUP)
    shell.communicate(timeout=30)
    assert shell.returncode == -signal.SIGHUP
    said(engine, server, "ready")
    assert engine.state(server).status == "running"


@pytest.mark.parametrize("event", ["ctrl-c", "hang-up"])
def test_it_outlives_the_terminal(engine: ProcessEngine, make: Callable[..., Server], event: str) -> None:
    server = make()
    master, slave = pty.openpty()
    shell = starter(server, event, os.ttyname(slave))
    os.close(slave)
    assert shell.stdout
    assert shell.stdout.readline() == "started\n"
    if event == "ctrl-c":
        os.write(master, b"\x03")
    else:
        os.close(master)
    shell.communicate(timeout=30)
    assert shell.returncode == (-signal.SIGHUP if event == "hang-up" else -signal.SIGINT)
    if event == "ctrl-c":
        os.close(master)
    said(engine, server, "ready")
    assert engine.state(server).status == "running"
    assert psutil.Process(leader(server)).terminal() is None


def test_a_start_killed_half_way_leaves_a_server_that_is_found_and_stopped(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    server = make()
    shell = starter(server, "die-between")
    shell.communicate(timeout=30)
    assert shell.returncode == -signal.SIGKILL
    said(engine, server, "ready")
    found = record.read(server.run_dir)
    assert found
    assert found.pid is None
    assert engine.state(server).status == "running"
    with pytest.raises(StartFailed, match="already running"):
        engine.start(server)
    assert engine.stop(server) is True
    assert record.members(found) == []


# --- whom it ends, and whom never ---


def bystander() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"], start_new_session=True)


def test_a_record_that_points_at_another_living_process_is_not_trusted_and_it_is_never_killed(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    server = make("exit", "0")
    engine.start(server)
    wait_for(lambda: engine.state(server).status == "exited")
    other = bystander()
    try:
        last = record.read(server.run_dir)
        assert last
        record.write(server.run_dir, dataclasses.replace(last, pid=other.pid))
        assert engine.state(server).status == "exited"
        assert engine.report(server) is None
        assert engine.stop(server) is False
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_record_of_another_boot_is_not_trusted(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make()
    engine.start(server)
    kept = record.read(server.run_dir)
    assert kept
    record.write(server.run_dir, dataclasses.replace(kept, boot_id="another"))
    assert engine.state(server).status == "exited"
    record.write(server.run_dir, kept)
    assert engine.state(server).status == "running"


def blank() -> record.Record:
    return record.Record(stack="s", nonce=RUN, boot_id=proc.boot_id(), since_ticks=proc.now_ticks(), command=())


def marked() -> subprocess.Popen[bytes]:
    env = os.environ | {record.MARKER: blank().marker}
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"], env=env, start_new_session=True)


def test_what_is_older_than_the_start_never_belongs_to_it_even_with_its_marker() -> None:
    before = blank()
    process = marked()
    try:
        wait_for(lambda: [found.pid for found in record.members(before)] == [process.pid])
        born = proc.start_ticks(process.pid)
        assert born
        assert record.members(dataclasses.replace(before, since_ticks=born + 1)) == []
    finally:
        process.kill()
        process.wait()


def test_a_process_with_the_marker_in_another_session_does_not_belong_to_a_known_leader() -> None:
    before = blank()
    process = marked()
    try:
        wait_for(lambda: record.members(before))
        assert record.members(dataclasses.replace(before, pid=process.pid + 1, start_ticks=2)) == []
    finally:
        process.kill()
        process.wait()


def test_who_asks_and_its_parents_never_belong_to_a_stack(tmp_path: Path) -> None:
    """Run in a process whose parent and grandparent carry the marker as well: only its own child is found."""
    script = tmp_path / "asks.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "from gemmaspec.run.engine import proc, record\n"
        "made = record.Record(stack='s', nonce=os.environ['NONCE'], boot_id=proc.boot_id(), since_ticks=0, command=())\n"
        "if sys.argv[1] == '2':\n"
        "    child = subprocess.Popen(['sleep', '99'])\n"
        "    print([process.pid for process in record.members(made)] == [child.pid], flush=True)\n"
        "    child.kill(); child.wait()\n"
        "else:\n"
        "    subprocess.run([sys.executable, __file__, str(int(sys.argv[1]) + 1)], check=True)\n"
    )
    env = os.environ | {record.MARKER: blank().marker, "NONCE": RUN}
    command = [sys.executable, str(script), "0"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize("field", ["stack", "nonce", "boot_id", "since_ticks"])
@pytest.mark.parametrize("value", ["", None, []])
def test_a_record_without_a_whole_identity_is_damaged(tmp_path: Path, field: str, value: Any) -> None:
    record.write(tmp_path, dataclasses.replace(blank(), **{field: value}))
    with pytest.raises(UnreadableFile, match=r"process\.json: it is damaged"):
        record.read(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"pid": 1}', '{"pid": -1, "command": []}', "\x00\xff", '{"command": null}'],
)
def test_a_broken_record_is_not_called_absent(engine: ProcessEngine, make: Callable[..., Server], text: str) -> None:
    server = make()
    server.run_dir.mkdir()
    (server.run_dir / "process.json").write_text(text)
    for question in (engine.state, engine.stop, engine.runs):
        with pytest.raises(UnreadableFile, match=r"process\.json: it is damaged"):
            question(server)
    (server.run_dir / "process.json").unlink()
    assert engine.state(server).status == "absent"


def test_a_lost_record_is_made_good_from_the_process_that_holds_the_lock(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    server = make("children")
    engine.start(server)
    said(engine, server, "child ready", times=2)
    pid = leader(server)
    (server.run_dir / "process.json").write_text("{")
    assert engine.state(server).status == "running"
    assert engine.state(server).detail == f"pid {pid}"
    assert engine.stop(server) is True
    assert session(pid) == []
    assert engine.state(server).status == "absent"


@pytest.mark.parametrize("lost", ["missing", "damaged"])
def test_a_record_that_is_lost_hides_no_server(engine: ProcessEngine, make: Callable[..., Server], lost: str) -> None:
    server = make("children")
    engine.start(server)
    said(engine, server, "child ready", times=2)
    pid, file = leader(server), server.run_dir / "process.json"
    file.unlink() if lost == "missing" else file.write_text("{")
    assert engine.state(server).detail == f"pid {pid}"
    with pytest.raises(StartFailed, match="already running"):
        engine.start(server)
    assert engine.stop(server) is True
    assert session(pid) == []


def running(engine: ProcessEngine, make: Callable[..., Server]) -> tuple[Server, record.Record]:
    """Start a server, and return it with its record."""
    server = make()
    engine.start(server)
    said(engine, server, "ready")
    own = record.read(server.run_dir)
    assert own
    return server, own


@pytest.mark.parametrize(
    ("moved", "where"),
    [
        ({"host": "other", "boot_id": "x", "machine": "y"}, "the host other"),
        ({"host": "devcontainer", "namespace": "pid:[1]"}, "another container or pid namespace of devcontainer"),
        ({"namespace": "pid:[1]"}, "another container or pid namespace of"),
    ],
)
def test_a_server_of_another_host_or_container_is_named_and_its_record_stays(
    engine: ProcessEngine, make: Callable[..., Server], moved: dict[str, str], where: str
) -> None:
    server, own = running(engine, make)
    record.write(server.run_dir, dataclasses.replace(own, **moved))
    try:
        state = engine.state(server)
        assert (state.status, where in state.detail) == ("unknown", True)
        said = "gemmaspec down demo    # there; or with --force here, if its processes are of this machine"
        assert state.hint == said
        for refused in (engine.stop, engine.start, engine.preflight):
            with pytest.raises(EnvironmentMissing, match=where):
                refused(server)
        assert record.read(server.run_dir)
        assert record.leads(own)
    finally:
        record.write(server.run_dir, own)
    assert engine.stop(server) is True


@pytest.mark.parametrize(
    "moved", [{"host": "earlier-name"}, {"host": "earlier-name", "namespace": record.namespace(), "machine": ""}]
)
def test_a_machine_with_a_new_name_is_still_this_one(
    engine: ProcessEngine, make: Callable[..., Server], moved: dict[str, str]
) -> None:
    server, own = running(engine, make)
    record.write(server.run_dir, dataclasses.replace(own, **moved))
    assert engine.state(server).status == "running"
    assert engine.stop(server) is True


def test_a_machine_that_was_booted_and_renamed_is_known_by_its_id(
    engine: ProcessEngine, make: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, own = running(engine, make)
    monkeypatch.setattr(record, "machine_id", lambda: "m")
    moved = dataclasses.replace(own, host="earlier-name", boot_id="x")
    assert moved.elsewhere == "the host earlier-name"
    assert dataclasses.replace(moved, machine="m").elsewhere is None
    assert engine.stop(server) is True


def test_a_server_that_ended_on_another_host_stands_in_nobodys_way(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    server, own = running(engine, make)
    record.write(server.run_dir, dataclasses.replace(own, host="other", boot_id="x"))
    os.kill(leader(server), signal.SIGKILL)
    wait_for(lambda: engine.state(server).status == "exited")
    assert engine.stop(server) is False
    assert record.read(server.run_dir) is None


def test_from_another_namespace_of_pids_a_server_is_neither_gone_nor_forgotten(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    server = make()
    engine.start(server)
    said(engine, server, "ready")
    script = (
        "from pathlib import Path; from gemmaspec.run.engine.process import ProcessEngine;"
        "from gemmaspec.run.engine.server import Server;"
        f"one = Server(name='demo', folder=Path({str(server.folder)!r}), port=1, model='m', speculates=False);"
        "print(ProcessEngine().state(one)); ProcessEngine().stop(one)"
    )
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "Operation not permitted" in done.stderr:
        pytest.skip("this user may not make a namespace")
    assert "status='unknown'" in done.stdout
    assert "another container or pid namespace" in done.stderr
    assert engine.state(server).status == "running"


def test_down_by_force_needs_neither_record_nor_disk(
    engine: ProcessEngine, make: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, other = make("children"), make(name="demo-2")
    for one in (server, other):
        engine.start(one)
    said(engine, server, "child ready", times=2)
    pid = leader(server)
    (server.run_dir / "process.json").unlink()
    (server.run_dir / "lock").unlink()

    def full(*_: object, **__: object) -> None:
        raise EnvironmentMissing("cannot write: no space left on the disk")

    monkeypatch.setattr("gemmaspec.core.files.write_whole", full)
    monkeypatch.setattr("gemmaspec.core.records.write_whole", full)
    assert run_cli(["down", "demo", "--force"]) == 0
    assert session(pid) == []
    assert engine.state(other).status == "running"


def test_a_full_disk_names_the_way_to_stop_a_server(
    make: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make()

    def full(*_: object, **__: object) -> None:
        raise EnvironmentMissing("cannot write x: no space left on the disk")

    monkeypatch.setattr("gemmaspec.serve.down.down", full)
    assert run_cli(["down", "demo"]) == 4
    assert "gemmaspec down demo --force" in capsys.readouterr().err


@pytest.mark.parametrize(("pid", "ticks"), [(1, 5), (0, 5), (-1, 5), (True, 5), ("12", 5), (None, 5), (12, None)])
def test_a_record_with_an_impossible_pid_is_damaged(tmp_path: Path, pid: Any, ticks: Any) -> None:
    made = dataclasses.replace(blank(), pid=pid, start_ticks=ticks)
    record.write(tmp_path, made)
    with pytest.raises(UnreadableFile, match=r"process\.json: it is damaged"):
        record.read(tmp_path)


def test_stopping_ends_the_children_too(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make("children")
    engine.start(server)
    said(engine, server, "child ready", times=2)
    sid = leader(server)
    assert len(session(sid)) == 3
    assert engine.stop(server) is True
    assert session(sid) == []


def test_the_leader_is_asked_first_so_that_it_can_end_its_children_itself(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    server = make("orderly")
    engine.start(server)
    said(engine, server, "child ready")
    said(engine, server, "ready")
    assert engine.stop(server) is True
    assert list(engine.logs(server))[-3:] == ["leader asked", "leader leaves", "child asked"]


def test_orphans_of_a_killed_leader_are_found_told_and_ended(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    server = make("children")
    engine.start(server)
    said(engine, server, "child ready", times=2)
    sid = leader(server)
    os.kill(sid, signal.SIGKILL)
    wait_for(lambda: engine.state(server).status == "exited")
    assert "left processes behind" in engine.state(server).detail
    assert len(session(sid)) == 2
    for refused in (engine.preflight, engine.start):
        with pytest.raises(EnvironmentMissing, match="left processes behind"):
            refused(server)
    assert engine.stop(server) is True
    assert session(sid) == []
    engine.start(server)


def test_what_ignores_the_request_is_killed_after_the_grace_time(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    server = make("stubborn", stop_grace_s=1.0)
    engine.start(server)
    said(engine, server, "child ready", times=2)
    said(engine, server, "ready")
    sid = leader(server)
    began = time.monotonic()
    assert engine.stop(server) is True
    assert 1.0 <= time.monotonic() - began < 30
    assert session(sid) == []


def test_a_session_that_reuses_the_number_of_a_dead_one_is_left_alone(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    server = make()
    engine.start(server)
    time.sleep(0.05)  # a number is not used again within the clock tick that tells two processes apart
    other = subprocess.Popen(["sh", "-c", "sleep 999 & wait"], start_new_session=True)
    try:
        wait_for(lambda: len(session(other.pid)) == 2)
        known = record.read(server.run_dir)
        assert known
        engine.stop(server)
        record.write(server.run_dir, dataclasses.replace(known, pid=other.pid))
        assert engine.stop(server) is False
        assert len(session(other.pid)) == 2
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()


def test_the_marker_survives_a_process_that_renames_itself(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    """vLLM calls its engine `VLLM::EngineCore` with setproctitle, which overwrites the environment area."""
    pytest.importorskip("setproctitle", reason="setproctitle is not installed")
    server = make()
    rename = (
        "import setproctitle, time\nsetproctitle.setproctitle('X' * 4000)\nprint('ready', flush=True)\ntime.sleep(99)"
    )
    server = dataclasses.replace(server, command=(sys.executable, "-c", rename))
    engine.start(server)
    said(engine, server, "ready")
    found = record.read(server.run_dir)
    assert found
    assert len(record.members(dataclasses.replace(found, pid=None))) == 1


def test_a_server_of_another_user_cannot_be_ended_and_that_is_told(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    server = make()
    engine.start(server)
    found = record.read(server.run_dir)
    assert found
    saved = os.getresuid()
    os.setresuid(65534, 65534, 0)
    try:
        with pytest.raises(GemmaspecError, match="may not stop pid"):
            record.end(found, grace_s=1)
    finally:
        os.setresuid(*saved)
    assert engine.state(server).status == "running"


def test_a_launcher_started_by_hand_is_seen_by_its_lock(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make()
    server.run_dir.mkdir()
    by_hand = subprocess.Popen(launch_args(server), start_new_session=True)
    try:
        wait_for((server.run_dir / "report.json").exists)
        assert f"pid {by_hand.pid} holds its lock" in engine.state(server).detail
        for refused in (engine.preflight, engine.start):
            with pytest.raises(EnvironmentMissing, match=f"pid {by_hand.pid} holds its lock"):
                refused(server)
        assert engine.state(server).status == "unknown"
        with pytest.raises(EnvironmentMissing, match=f"pid {by_hand.pid} holds its lock"):
            engine.stop(server)
        assert by_hand.poll() is None
    finally:
        by_hand.kill()
        by_hand.wait()


def test_a_server_that_the_kernel_still_ends_is_waited_for_and_never_foreign(
    engine: ProcessEngine, make: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed leader is a zombie while its other threads end, and these still hold the launcher's lock."""
    let_go, looks = tmp_path / "let-go", []
    server = make("lingers", str(let_go))
    engine.start(server)
    pid = leader(server)
    wait_for(lambda: proc.is_ending(pid) and process_module.holder_of(server) == pid)
    holder_of = process_module.holder_of

    def look(asked: Server) -> int | None:
        looks.append(holder_of(asked))
        if len(looks) == 3:
            let_go.touch()
        return looks[-1]

    monkeypatch.setattr(process_module, "holder_of", look)
    ProcessEngine().stop(server)  # not the parent, which would wait for its child anyway
    assert looks[:3] == [pid] * 3
    assert looks[-1] is None
    engine._children.pop(server.run_dir).wait()
    engine.start(dataclasses.replace(server, command=(*server.command[:2], "wait")))
    assert engine.state(server).status == "running"


def test_a_restart_ends_with_a_server_whenever_the_old_one_is_killed(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    """Twenty restarts; the old server is killed before, while and after it is asked to stop."""
    server = make("large")
    for turn in range(20):
        engine.start(server)
        said(engine, server, "ready")
        killer = threading.Timer(0.002 * turn, os.kill, (leader(server), signal.SIGKILL))
        killer.start()
        ProcessEngine().stop(server)
        killer.join()
        engine._children.pop(server.run_dir).wait()
    engine.start(server)
    assert engine.state(server).status == "running"


def test_a_lock_that_is_never_let_go_is_told_as_what_it_is(
    engine: ProcessEngine, make: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_RELEASE_WAIT_S", 0)
    server = make("lingers", str(tmp_path / "let-go"))
    engine.start(server)
    pid = leader(server)
    wait_for(lambda: proc.is_ending(pid))
    with pytest.raises(EnvironmentMissing, match=f"pid {pid} of demo was killed .* the kernel still ends it"):
        ProcessEngine().stop(server)
    (tmp_path / "let-go").touch()


def test_a_second_stop_waits_for_the_first_and_a_hanging_one_is_told(
    engine: ProcessEngine, make: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_LOCK_WAIT_S", 0.2)
    server = make("stubborn", stop_grace_s=60.0)
    engine.start(server)
    said(engine, server, "child ready", times=2)
    said(engine, server, "ready")
    sid = leader(server)
    first = threading.Thread(target=engine.stop, args=(server,))
    first.start()
    said(engine, server, "asked")  # so the first has the lock, and keeps it until the server ends
    with pytest.raises(GemmaspecError, match="is starting or stopping demo"):
        ProcessEngine().stop(server)
    os.killpg(sid, signal.SIGKILL)
    first.join()
    assert engine.state(server).status == "absent"


# --- what it says ---


def test_logs_follow_until_the_server_ends(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make()
    engine.start(server)
    seen: list[str] = []
    follower = threading.Thread(target=lambda: seen.extend(engine.logs(server, follow=True)))
    follower.start()
    wait_for(lambda: seen == ["ready"])
    assert follower.is_alive()
    engine.stop(server)
    follower.join(timeout=60)
    assert not follower.is_alive()
    assert seen == ["ready"]


def test_hostile_output_reaches_nobody_raw(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    hostile = rb"b'a\x1b[31mred\x1b[0m\x1b]0;title\x07\tb\n\xff\xfe broken\n1%\r2%\r\n' + b'\xe2\x82\xac' * 40000"
    server = make("say", hostile.decode())
    engine.start(server)
    ready, first, second, *rest = engine.logs(server, follow=True)
    assert (ready, first, second) == ("ready", "ared\tb", "\ufffd\ufffd broken")
    assert rest == ["1%", "2%", "€" * 40000]


def test_a_start_keeps_the_log_of_the_one_before_and_shows_only_its_own(
    engine: ProcessEngine, make: Callable[..., Server]
) -> None:
    for code in ("1", "2"):
        server = make("exit", code)
        engine.start(server)
        assert list(engine.logs(server, follow=True)) == ["bye"]
        wait_for(lambda server=server: engine.state(server).status == "exited")
    log = server.run_dir / "server.log"
    assert log.read_text() == "bye\n"
    assert log.with_name("server.log.1").read_text() == "bye\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_only_the_last_lines_can_be_asked_for(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make("say", r"b'one\ntwo\n1%\r2%\r3%\n'")
    engine.start(server)
    list(engine.logs(server, follow=True))
    assert list(engine.logs(server, tail=2)) == ["2%", "3%"]
    assert list(engine.logs(server, tail=0)) == []
    assert list(engine.logs(server, tail=99)) == ["ready", "one", "two", "1%", "2%", "3%"]


def test_the_report_is_only_that_of_the_running_server(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make()
    assert engine.report(server) is None
    engine.start(server)
    report = wait_for(lambda: engine.report(server))
    assert report["pid"] == leader(server)
    file = server.run_dir / "report.json"
    file.write_text(json.dumps({"pid": leader(server) + 1}))
    assert engine.report(server) is None
    file.write_text("[]")
    with pytest.raises(GemmaspecError, match="not a JSON object"):
        engine.report(server)
    file.write_text(" " * 1024 * 1024 + "{}")
    with pytest.raises(GemmaspecError, match="longer than"):
        engine.report(server)
    engine.stop(server)
    assert engine.report(server) is None


def test_the_launcher_gets_its_files_and_a_neutral_folder(
    engine: ProcessEngine, make: Callable[..., Server], tmp_path: Path
) -> None:
    server = make()
    folder = server.folder
    (folder / "speculative-config.json").write_text("{}")
    engine.start(server)
    report = wait_for(lambda: engine.report(server))
    assert report["args"] == [
        *("--plan", str(folder / "plan.json")),
        *("--run-dir", str(folder / "run")),
        *("--cache-dir", str(tmp_path / "state" / "cache")),
        *("--speculative-config", str(folder / "speculative-config.json")),
    ]
    assert report["cwd"] == str(folder / "run" / "cwd")
    assert list(Path(report["cwd"]).iterdir()) == []


def test_without_speculation_the_launcher_is_not_told_of_a_config(make: Callable[..., Server]) -> None:
    assert "--speculative-config" not in launch_args(make(speculates=False))
    server = make()
    assert not (server.folder / "speculative-config.json").exists(), "the command does not depend on the disk"
    assert launch_args(server)[-6:-3] == ("--speculative-config", str(server.folder / "speculative-config.json"), "--")


def test_the_environment_is_this_one_without_another_pythons_settings(
    engine: ProcessEngine, make: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    monkeypatch.setenv("HF_HOME", "/user's")
    server = make(environment={"HF_HOME": "/ours", "PYTHONUNBUFFERED": "1"})
    engine.start(server)
    wait_for(lambda: engine.report(server))
    env = wait_for(lambda: psutil.Process(leader(server)).environ())  # empty in the instant of an exec
    assert "/elsewhere" not in env.values()
    assert (env["HF_HOME"], env["PYTHONUNBUFFERED"], env["VLLM_API_KEY"]) == ("/ours", "1", "s3cret")
    assert env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    kept = "".join(file.read_text() for file in server.run_dir.glob("*.json"))
    assert "s3cret" not in kept


def test_an_api_key_of_the_command_is_not_kept(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make("wait", "--api-key", "s3cret", "--api-key=s3cret")
    engine.start(server)
    text = (server.run_dir / "process.json").read_text()
    assert "s3cret" not in text
    assert json.loads(text)["command"][-3:] == ["--api-key", "***", "--api-key=***"]
    assert without_key(("a", "--api-key")) == ("a", "--api-key")


def test_the_marker_is_last_and_cannot_be_set_by_a_profile(make: Callable[..., Server]) -> None:
    server = make(environment={record.MARKER: "forged"})
    assert environment(server, "demo:nonce")[record.MARKER] == "demo:nonce"


def test_launches_of_a_kernel_come_from_the_profile_alone(
    make: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "GEMMASPEC_LAUNCHES"
    monkeypatch.setenv(name, "garbage")
    assert name not in environment(make(), "demo:nonce")
    assert (
        environment(make(environment={name: "prompt:12,512,1=32,64,8,2"}), "demo:nonce")[name]
        == "prompt:12,512,1=32,64,8,2"
    )


# --- what is missing ---


def test_a_missing_or_unusable_interpreter_is_told(
    engine: ProcessEngine, make: Callable[..., Server], tmp_path: Path
) -> None:
    plain = tmp_path / "python"
    plain.write_text("#!/nonexistent\n")
    for python, why in ((None, "is missing"), (tmp_path / "no", "is missing"), (plain, "is not executable")):
        with pytest.raises(EnvironmentMissing, match=why):
            engine.preflight(make(python=python))
    plain.chmod(0o755)
    server = make(python=plain)
    with pytest.raises(EnvironmentMissing, match=r"cannot run .*: No such file"):
        engine.start(server)
    assert engine.state(server).status == "absent"


def test_an_incomplete_stack_is_told(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make()
    (server.folder / "plan.json").unlink()
    with pytest.raises(EnvironmentMissing, match=r"plan\.json is missing") as caught:
        engine.start(server)
    assert caught.value.hint == "gemmaspec up demo"


def test_a_port_held_by_another_process_names_it(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make()
    with (
        socket.create_server(("127.0.0.1", server.port)),
        pytest.raises(EnvironmentMissing, match=rf"port {server.port} .* \(pid {os.getpid()}\)"),
    ):
        engine.preflight(server)
    engine.preflight(server)


def test_a_run_folder_that_cannot_be_written_is_told(engine: ProcessEngine, make: Callable[..., Server]) -> None:
    server = make()
    server.run_dir.write_text("a file where the folder should be")
    for refused in (engine.preflight, engine.start):
        with pytest.raises(EnvironmentMissing, match="cannot write"):
            refused(server)
    server.run_dir.unlink()


@pytest.fixture
def small_disk(make: Callable[..., Server]) -> Iterator[Path]:
    """The run folder of `demo` on a disk of 64 KiB."""
    run_dir = make().run_dir
    run_dir.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(run_dir)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no small disk: this user may not mount one")
    yield run_dir
    subprocess.run(["umount", "--lazy", str(run_dir)], check=True)


def test_a_disk_that_is_too_small_is_told(engine: ProcessEngine, make: Callable[..., Server], small_disk: Path) -> None:
    with pytest.raises(EnvironmentMissing, match="only 0 MiB are free"):
        engine.preflight(make())


def test_a_full_disk_starts_nothing(engine: ProcessEngine, make: Callable[..., Server], small_disk: Path) -> None:
    room = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(b"x" * room)
    with pytest.raises(EnvironmentMissing, match="no space left"):
        engine.start(make())
    assert engine.state(make()).status == "absent"


def test_a_record_that_cannot_be_written_after_the_start_ends_what_was_started(
    engine: ProcessEngine, make: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make()
    write, written = record.write, []

    def fail_the_second_time(run_dir: Path, made: record.Record) -> None:
        written.append(made)
        if len(written) == 2:
            raise EnvironmentMissing("no space left")
        write(run_dir, made)

    monkeypatch.setattr(record, "write", fail_the_second_time)
    with pytest.raises(EnvironmentMissing, match="no space left"):
        engine.start(server)
    assert written[1].pid
    assert record.members(written[0]) == []
    assert engine.state(server).status == "absent"


def test_a_signal_that_waits_is_not_lost_where_what_it_waits_for_fails() -> None:
    def fails() -> None:
        with signals_wait():
            signal.raise_signal(signal.SIGINT)
            raise StartFailed("it cannot be started")

    with pytest.raises(KeyboardInterrupt):
        fails()


def test_a_signal_between_fork_and_exec_loses_no_process(
    make: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child is held before exec until the signal has come: by its environment nobody could find it then."""
    server = make()
    forked, go = os.pipe(), os.pipe()

    def held() -> None:
        os.write(forked[1], str(os.getpid()).encode())
        os.read(go[0], 1)

    def send() -> None:
        children.append(int(os.read(forked[0], 20)))
        os.kill(os.getpid(), signal.SIGTERM)
        os.write(go[1], b"x")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    children: list[int] = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **more: popen(*words, **more, preexec_fn=held))
    sender = threading.Thread(target=send)
    sender.start()
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            ProcessEngine().start(server)
    finally:
        signal.signal(signal.SIGTERM, before)
        sender.join()
        for end in (*forked, *go):
            os.close(end)
    assert not psutil.pid_exists(children[0])
    assert ProcessEngine().state(server).status == "absent"
