"""What goes wrong around a start, with the fake vLLM: races, kills, ports, damaged files. Both ends are whole."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gemmaspec.__main__ import raise_again
from gemmaspec.core.files import state_dir
from gemmaspec.run.engine.record import MARKER
from gemmaspec.run.kept import claims, stack_lock, stacks
from tests.support import fake_runtime
from tests.support.docker_support import wait_for
from tests.support.fake_runtime import Fake
from tests.support.real import Done, free_port

RACES = int(os.environ.get("GEMMASPEC_TEST_RACES", "5"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    return fake_runtime.installed(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def fake(place: Fake) -> Iterator[Fake]:
    fake_runtime.make_models()
    yield place
    for name in ("pa", "pb"):
        shutil.rmtree(state_dir() / "stacks" / name / stacks.RECORD, ignore_errors=True)
    for process in servers():
        with contextlib.suppress(psutil.Error):
            process.kill()
            process.wait(60)


def servers(name: str = "") -> list[psutil.Process]:
    """The living processes of this test's stacks; one that ends shows no environment."""
    marks = [f"\0GEMMASPEC_STATE={state_dir()}\0".encode(), f"\0{MARKER}={name}".encode()]
    found = []
    for pid in psutil.pids():  # whose environ() takes ten times as long as this, and many tests wait for it
        with contextlib.suppress(OSError, psutil.Error):
            environment = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
            if all(mark in environment for mark in marks):
                found.append(psutil.Process(pid))
    return found


def test_two_ups_of_one_profile_share_one_start(fake: Fake) -> None:
    fake.profile("pa", free_port())
    for _ in range(RACES):
        command = ("up", "pa", "--engine", "process")
        done = fake.race(command, command, env={"FAKE_VLLM_SECONDS": "0.3"})
        assert [one.code for one in done] == [0, 0], done
        assert sum("is starting it; waiting" in one.err for one in done) == 1, done
        assert len(servers("pa")) == 1
        assert fake.run("down", "pa").code == 0
        assert servers() == []


def test_two_different_ups_of_one_stack_do_not_mix(fake: Fake) -> None:
    fake.profile("pa", free_port())
    done = fake.race(
        ("up", "pa", "--engine", "process"),
        ("up", "pa", "--engine", "process", "--set", "serve.max_num_seqs=3"),
        env={"FAKE_VLLM_SECONDS": "1"},
    )
    assert sorted(one.code for one in done) == [0, 1], done
    refused = next(one for one in done if one.code)
    assert "pa is held by gemmaspec up (pid " in refused.err
    assert "gemmaspec down pa" in refused.err
    assert len(servers("pa")) == 1


def test_two_profiles_on_one_port_do_not_both_run(fake: Fake) -> None:
    port = free_port()
    for name in ("pa", "pb"):
        fake.profile(name, port)
    for _ in range(RACES):
        up = [("up", name, "--engine", "process") for name in ("pa", "pb")]
        done = fake.race(*up, env={"FAKE_VLLM_SECONDS": "0.3"})
        assert sorted(one.code for one in done) == [0, 4], done
        winner, loser = ("pa", "pb") if done[0].code == 0 else ("pb", "pa")
        assert f"port {port} belongs to the stack {winner}" in done[loser == "pb"].err
        assert len(servers()) == 1
        assert fake.run("down", winner).code == 0


def test_another_server_that_shares_the_port_is_seen(fake: Fake, tmp_path: Path) -> None:
    """Of another state folder, and so without a claim: it begins to listen after the check of the port."""
    port, go = free_port(), tmp_path / "go"
    fake.profile("pa", port)
    with fake.start(
        "up", "pa", "--engine", "process", env={"FAKE_VLLM_SECONDS": "900", "FAKE_VLLM_GO": str(go)}
    ) as starting:
        wait_for(lambda: servers("pa"))
        code = (
            "import socket, time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); "
            f"s.bind(('127.0.0.1', {port})); s.listen(1); print('listens', flush=True); time.sleep(900)"
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as stranger:
            assert stranger.stdout
            assert stranger.stdout.readline() == b"listens\n"
            go.touch()
            wait_for(lambda: len(_listeners(port)) == 2 or starting.poll() is not None)
            _, err = starting.communicate(timeout=600)  # the stranger takes connections and never answers
            stranger.kill()
    assert starting.returncode == 6, err
    assert "also listens on port" in err
    assert f"pid {stranger.pid}" in err
    assert servers() == []


def _listeners(port: int) -> list[int | None]:
    found = psutil.net_connections(kind="tcp")
    return [one.pid for one in found if one.status == psutil.CONN_LISTEN and one.laddr.port == port]


def test_a_taken_port_leaves_the_running_server(fake: Fake) -> None:
    port, taken = free_port(), free_port()
    fake.profile("pa", port)
    assert fake.run("up", "pa", "--engine", "process").code == 0
    (before,) = servers("pa")
    with socket.create_server(("127.0.0.1", taken)):
        done = fake.run("up", "pa", "--set", f"serve.port={taken}")
    assert done.code == 4, done.err
    assert f"port {taken} on 127.0.0.1 is in use by" in done.err
    assert servers("pa") == [before]
    assert (claims.claimed_by(port), claims.claimed_by(taken)) == ("pa", None)
    assert fake.run("restart", "pa").code == 0
    assert stacks.find("pa").server.port == port


def test_a_failed_replacement_goes_back_to_what_ran(fake: Fake) -> None:
    port = free_port()
    fake.profile("pa", port)
    done = fake.run("up", "pa", "--engine", "process")
    assert done.code == 0, done.err
    good = stacks.find("pa").known_good
    assert good, done.err
    done = fake.run("up", "pa", "--set", "serve.max_num_seqs=3", "--set", "env.FAKE_VLLM_EXIT='3'")
    assert done.code == 6, done.err
    assert "pa runs again as before" in done.err
    assert len(servers("pa")) == 1
    assert stacks.find("pa").known_good == good
    done = fake.run("up", "pa", "--set", "env.FAKE_VLLM_EXIT='3'", "--no-rollback-on-failure")
    assert done.code == 6, done.err
    assert "gemmaspec rollback pa" in done.err
    assert servers() == []
    assert fake.run("rollback", "pa").code == 0


def test_the_dry_run_prints_the_command_that_runs(fake: Fake) -> None:
    fake.profile("pa", free_port())
    plan = json.loads(fake.run("up", "pa", "--engine", "process", "--dry-run", "--json").out)
    assert not (stacks.stack_folder("pa")).exists(), "it writes nothing"
    assert fake.run("up", "pa", "--engine", "process").code == 0
    record = json.loads((stacks.stack_folder("pa") / "run" / "process.json").read_text())
    assert shlex.split(plan["command"]) == record["command"]
    assert "--speculative-config" in record["command"]


MOMENTS: dict[str, Callable[[], object]] = {
    "held": lambda: stack_lock.holder("pa"),
    # A phase this short may be over when it is looked for; what comes after it will do.
    "checking": lambda: _phase("checking") or MOMENTS["written"](),
    "written": lambda: (stacks.stack_folder("pa") / stacks.RECORD).exists(),
    "started": lambda: (stacks.stack_folder("pa") / "run" / "process.json").exists(),
    "running": lambda: servers("pa"),
    "serving": lambda: (stacks.stack_folder("pa") / "run" / "report.json").exists(),
}


def _phase(name: str) -> bool:
    found = stack_lock.holder("pa")
    return bool(found and found.phase == name)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_a_start_that_is_killed_leaves_nothing_that_cannot_be_found(
    fake: Fake, moment: str, number: signal.Signals
) -> None:
    port = free_port()
    fake.profile("pa", port)
    # What is terminated is still starting, however late the signal is; what is killed leaves its server to the next.
    lasting = {"FAKE_VLLM_SECONDS": "60" if number == signal.SIGTERM else "1"}
    with fake.start("up", "pa", "--engine", "process", env=lasting) as starting:
        _busy_wait(lambda: MOMENTS[moment]() or starting.poll() is not None)
        starting.send_signal(number)
        _, err = starting.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert servers() == [], err
        assert starting.returncode == 130, err
    status = fake.run("status", "pa")
    assert status.code in ((1, 2) if not servers("pa") else (0,)), (moment, status)
    done = fake.run("up", "pa", "--engine", "process")
    assert done.code == 0, (moment, done.err)
    assert len(servers("pa")) == 1
    assert fake.run("down", "pa").code == 0
    assert servers() == []
    assert claims.claimed_by(port) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_where_cpython_drops_exceptions_still_ends_a_start(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a callback of a weak reference, of which each import has one. Ctrl-C is told from SIGTERM."""
    monkeypatch.setattr(sys, "unraisablehook", raise_again)
    terminated: list[int] = []

    class Module:
        pass

    def dropped(_: object) -> None:
        terminated.append(1)
        signal.raise_signal(number)

    def start() -> None:
        module = Module()
        reference = weakref.ref(module, dropped)
        del module
        assert reference() is None
        time.sleep(60)

    with stack_lock._interrupted_by_sigterm(), pytest.raises(KeyboardInterrupt) as ended:
        start()
    assert ended.type is (KeyboardInterrupt if number == signal.SIGINT else stack_lock.Terminated)
    assert terminated == [1]


def _busy_wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_down_gives_up_a_start_in_progress(fake: Fake) -> None:
    fake.profile("pa", free_port())
    with fake.start("up", "pa", "--engine", "process", env={"FAKE_VLLM_SECONDS": "60"}) as starting:
        wait_for(lambda: servers("pa"))
        done = fake.run("down", "pa")
        assert done.code == 0, done.err
        assert "stopping gemmaspec up (pid" in done.err
        _, err = starting.communicate(timeout=60)
    assert starting.returncode == 130, err
    assert servers() == []
    assert stacks.find("pa").outcome == "interrupted"


def test_a_reader_that_leaves_does_not_end_the_start(fake: Fake) -> None:
    fake.profile("pa", free_port())
    with fake.start("up", "pa", "--engine", "process", env={"FAKE_VLLM_SECONDS": "1"}) as starting:
        assert starting.stdout
        assert starting.stderr
        starting.stderr.readline()
        starting.stdout.close()
        starting.stderr.close()
        starting.wait(60)
    assert "Traceback" not in fake.run("status", "pa").err
    assert len(servers("pa")) == 1
    assert stacks.find("pa").outcome == "ready"


def test_a_full_disk_on_standard_output_is_told_and_ends_nothing(fake: Fake) -> None:
    fake.profile("pa", free_port())
    command = [sys.executable, "-m", "gemmaspec", "up", "pa", "--engine", "process"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=fake.environment(), check=False, timeout=90
        )
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == "error: cannot write standard output: No space left on device"
    assert len(servers("pa")) == 1
    assert stacks.find("pa").outcome == "ready"


def damage(file: Path, how: str) -> None:
    """Put something else in the place of a file."""
    content = file.read_bytes() if file.is_file() else b"{}"
    if file.is_dir():
        shutil.rmtree(file)
    else:
        file.unlink(missing_ok=True)
    if how == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif how == "garbage":
        file.write_bytes(os.urandom(4096))
    elif how == "folder":
        file.mkdir()
    elif how == "pipe":
        os.mkfifo(file)
    elif how == "link":
        file.symlink_to("/dev/zero")
    elif how == "device":
        file.symlink_to("/dev/full")
    elif how == "huge":
        with file.open("wb") as opened:
            opened.truncate(20 * 1024**3)


HOWS = ("truncated", "garbage", "folder", "pipe", "link", "huge")
KINDS = ("truncated", "folder", "pipe")
"""One of those that are read and mean nothing, what cannot be written over, and one of those that tests/core/test_files.py
shows not to be read; each takes two commands or four."""
FILES = {"record.json": HOWS, "run/process.json": KINDS, "run/report.json": KINDS, "plan.json": KINDS}


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_named_hides_nothing_and_keeps_nothing_alive(fake: Fake, file: str) -> None:
    fake.profile("pa", free_port())
    fake.profile("pb", free_port())
    assert fake.run("up", "pb", "--engine", "process").code == 0
    for how in FILES[file]:
        assert fake.run("up", "pa", "--engine", "process").code == 0, how
        target = stacks.stack_folder("pa") / file
        before = servers("pa")
        damage(target, how)
        status = fake.run("status")
        assert any(line.split()[0] == "pb" and "ready" in line for line in status.out.splitlines()), (how, status)
        assert "Traceback" not in status.err + status.out, (how, status)
        assert "pa  absent" not in status.out, (how, status)
        if file == "record.json":
            assert status.code == 4, (how, status)
            assert f"cannot read {target}" in status.out, (how, status)
            again = fake.run("up", "pa")
            assert again.code == 4, (how, again.err)
            assert "gemmaspec down pa" in again.err, (how, again.err)
            assert servers("pa") == before, "what the advice is about was not stopped"
        down = fake.run("down", "pa")
        assert down.code == 0, (how, down.err)
        assert "pa is stopped" in down.err, (how, down.err)
        assert servers("pa") == [], how
        if how == "folder" and target.is_dir():
            told = fake.run("up", "pa", "--engine", "process")
            assert told.code in (0, 4), (how, told.err)
            assert told.code == 0 or str(target) in told.err, (how, told.err)
            if told.code == 4:
                target.rmdir()
    assert fake.run("up", "pa", "--engine", "process").code == 0
    assert fake.run("down", "pb").code == 0


def test_a_start_that_nobody_waited_for_is_known_good_once_up_sees_it_ready(fake: Fake) -> None:
    fake.profile("pa", free_port())
    assert fake.run("up", "pa", "--engine", "process", "--detach").code == 0
    kept = state_dir() / "known-good" / "pa"
    assert not kept.exists()
    for _ in range(2):
        assert fake.run("up", "pa").code == 0
        (good,) = kept.glob("[0-9]*")
        assert stacks.find("pa").known_good == good.name.rpartition("-")[2]
    assert fake.run("down", "pa").code == 0


@pytest.mark.parametrize("how", KINDS)
def test_a_damaged_known_good_stack_is_passed_over(fake: Fake, how: str) -> None:
    fake.profile("pa", free_port())
    assert fake.run("up", "pa", "--engine", "process").code == 0
    (good,) = (state_dir() / "known-good" / "pa").glob("[0-9]*")
    damage(good / "record.json", how)
    done = fake.run("rollback", "pa")
    assert done.code == 2, done.err
    assert "pa has no known good stack" in done.err
    assert fake.run("up", "pa", "--set", "serve.max_num_seqs=3").code == 0
    assert fake.run("down", "pa").code == 0


def test_down_does_not_say_absent_over_a_living_server(fake: Fake) -> None:
    """Its record is gone: the lock's holder carries the server's mark, so it is found and ended."""
    fake.profile("pa", free_port())
    assert fake.run("up", "pa", "--engine", "process").code == 0
    (server,) = servers("pa")
    (stacks.stack_folder("pa") / "run" / "process.json").unlink()
    status = fake.run("status", "pa", "--json")
    assert json.loads(status.out)["stacks"][0]["status"] == "running", status.out
    assert fake.run("down", "pa").code == 0
    server.wait(60)


def test_a_kept_log_holds_no_secret(fake: Fake) -> None:
    fake.profile("pa", free_port())
    said = "login hf_abcdefghijkl at http://me:p%40ssw0rd@proxy:3128/ with p@ssw0rd and s3cret-key, api_key=0123456789"
    secrets = {"FAKE_VLLM_SAYS": said, "FAKE_VLLM_EXIT": "3", "VLLM_API_KEY": "s3cret-key"}
    proxy = {"HTTPS_PROXY": "http://me:p%40ssw0rd@proxy:3128/"}
    done = fake.run("up", "pa", "--engine", "process", env={**secrets, **proxy})
    assert done.code == 6, done.err
    log = stacks.stack_folder("pa") / "failed.log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert "login *** at http://***@proxy:3128/ with *** and ***, api_key=***" in log.read_text()
    for secret in ("hf_abc", "ssw0rd", "s3cret", "0123456789"):
        assert secret not in log.read_text() + done.err + done.out


def test_an_interrupt_within_executed_text_ends_the_command_with_130(fake: Fake, tmp_path: Path) -> None:
    """A dataclass that is being imported is such text; CPython forgets there that the interrupt was caught."""
    (tmp_path / "sitecustomize.py").write_text(
        "import gemmaspec.cli.app as app\n"
        "def run(arguments):\n"
        "    try:\n"
        "        exec('raise KeyboardInterrupt')\n"
        "    except KeyboardInterrupt:\n"
        "        print('told')\n"
        "        return 130\n"
        "app.run = run\n"
    )
    with fake.start("status", env={"PYTHONPATH": str(tmp_path)}) as interrupted:
        out, err = interrupted.communicate(timeout=60)
    assert (interrupted.returncode, out) == (130, "told\n"), err


def told_next(fake: Fake, name: str) -> list[str]:
    """The words of the command that `status` names next."""
    (found,) = json.loads(fake.run("status", name, "--json").out)["stacks"]
    return shlex.split(found["next"], comments=True)


@pytest.mark.parametrize("ended", ["killed", "stopped", "failed"])
def test_the_next_command_starts_it_as_it_ran(fake: Fake, ended: str) -> None:
    fake.profile("pa", free_port())
    how = (
        "--engine",
        "process",
        "--set",
        "serve.max_num_seqs=2",
        "--set",
        "serve.served_model_name=two words",
        "--no-spec",
    )
    if ended == "failed":  # another start went well before, with other options
        assert fake.run("up", "pa", "--engine", "process").code == 0
        assert fake.run("down", "pa").code == 0
        env = {"FAKE_VLLM_SECONDS": "60"}
        with fake.start("up", "pa", *how, env=env) as starting:
            wait_for(lambda: servers("pa"))
            starting.send_signal(signal.SIGTERM)
            starting.communicate(timeout=60)
    else:
        assert fake.run("up", "pa", *how).code == 0
        (server,) = servers("pa")
        ran = server.cmdline()
    if ended == "killed":
        server.kill()
        server.wait(60)
    elif ended == "stopped":
        assert fake.run("down", "pa").code == 0
    program, *words = told_next(fake, "pa")
    assert program == "gemmaspec"
    assert words[0] == ("up" if ended == "failed" else "restart")
    done = fake.run(*words)
    assert done.code == 0, done.err
    (server,) = servers("pa")
    assert "max-num-seqs" in " ".join(server.cmdline())
    assert server.cmdline()[server.cmdline().index("--max-num-seqs") + 1] == "2"
    assert ended == "failed" or server.cmdline() == ran
    assert not stacks.find("pa").server.speculates


def test_a_server_that_bench_has_left_behind_is_known_and_stopped(fake: Fake, tmp_path: Path) -> None:
    fake.profile("pa", free_port())
    assert fake.run("up", "pa", "--engine", "process", "--set", "serve.max_num_seqs=3").code == 0
    assert fake.run("down", "pa").code == 0
    bench = ("bench", "pa", "--engine", "process", "--out", str(tmp_path / "out"))
    with fake.start(*bench, env={"FAKE_VLLM_SECONDS": "1", "FAKE_VLLM_SILENT": "/v1/models"}) as measuring:
        wait_for(lambda: "by gemmaspec bench" in fake.run("status", "pa").out)
        wait_for(lambda: f"measured by gemmaspec bench (pid {measuring.pid})" in fake.run("status", "pa").out)
        refused = fake.run("up", "pa", "--engine", "process")
        assert refused.code == 1, refused.err
        assert f"pa is being measured by gemmaspec bench (pid {measuring.pid})" in refused.err
        other = fake.run("bench", "pa", "--out", str(tmp_path / "other"))
        assert "being measured by gemmaspec bench" in other.err, other.err
        measuring.kill()
        measuring.communicate(timeout=60)
    (server,) = servers("pa")
    assert "left behind by gemmaspec bench" in fake.run("status", "pa").out
    with fake.start(*bench, env={"FAKE_VLLM_SECONDS": "60"}) as again:  # goes on, without --replace
        wait_for(lambda: (found := servers("pa")) and server not in found)
        assert fake.run("down", "pa").code == 0
        again.communicate(timeout=60)
    assert "--max-num-seqs 3" in " ".join(_words_after_restart(fake))


def _words_after_restart(fake: Fake) -> list[str]:
    """The command line that `restart` runs: with the options of the last start that was to be used."""
    assert fake.run("restart", "pa").code == 0
    (server,) = servers("pa")
    return server.cmdline()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("fault", ["full", "read-only", "no locks"])
def test_a_state_folder_that_takes_nothing_hides_nothing_and_stops_nothing(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    state, port = tmp_path / "state", free_port()
    state.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1100m", "tmpfs", str(state)], check=False).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    monkeypatch.setenv("GEMMASPEC_STATE", str(state))
    environment: dict[str, str] = {}
    try:
        fake_runtime.make_models()
        fake.profile("pa", port)
        assert fake.run(*UP_PA).code == 0
        if fault == "full":
            used = subprocess.run(["df", "--output=used", str(state)], capture_output=True, text=True, check=True)
            size = f"remount,size={used.stdout.split()[-1]}k"
            subprocess.run(["mount", "-o", size, str(state)], check=True)
        elif fault == "read-only":
            subprocess.run(["mount", "--bind", str(state), str(state)], check=True)
            subprocess.run(["mount", "-o", "remount,ro,bind", str(state)], check=True)
        else:  # as some network file systems answer
            code = "import errno, fcntl\ndef refused(*_):\n    raise OSError(errno.ENOLCK, 'No locks available')\n"
            (tmp_path / "sitecustomize.py").write_text(f"{code}fcntl.flock = fcntl.lockf = refused\n")
            environment = {"PYTHONPATH": str(tmp_path)}

        def run(*command: str) -> tuple[int, str]:
            if environment:  # read when an interpreter starts
                with fake.start(*command, env=environment) as started:
                    out, err = started.communicate(timeout=60)
                done = Done(started.returncode, out, err)
            else:
                done = fake.run(*command)
            assert "Traceback" not in done.err
            return done.code, done.out + done.err

        assert run("status", "pa")[0] == 0
        assert run("status", "pa", "--wait")[0] == 0
        for command in (("restart", "pa"), (*UP_PA, "--set", "serve.max_num_seqs=2"), ("rollback", "pa")):
            code, said = run(*command)
            assert code == 4, (command, said)
            assert "cannot write" in said or "cannot lock" in said, said
            assert "GEMMASPEC_STATE" in said or "ls -ld" in said, said
        assert len(servers("pa")) == 1
        code, said = run("down", "pa")
        if fault != "full":  # there is no lock, and nobody else may be kept out
            assert (code, "gemmaspec down pa --force" in said) == (4, True), said
            code, said = run("down", "pa", "--force")
        assert code == 0, said
        assert servers("pa") == []
    finally:
        subprocess.run(["umount", "-q", str(state)] if fault == "read-only" else ["true"], check=False)
        for process in servers("pa"):
            process.kill()
            process.wait(60)
        subprocess.run(["umount", "-l", str(state)], check=False)


def put_away(folder: Path) -> None:
    """Mount a file system whose server has gone over a folder: each access says ENOTCONN. Skips where root may not."""
    try:
        answers = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error.strerror}")
    options = f"fd={answers},rootmode=40000,user_id=0,group_id=0".encode()
    refused = ctypes.CDLL(None, use_errno=True).mount(b"away", str(folder).encode(), b"fuse", 0, options)
    os.close(answers)
    if refused:
        pytest.skip(f"this machine does not let root mount FUSE: {os.strerror(ctypes.get_errno())}")


def test_a_state_folder_that_is_away_keeps_no_server_running(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("GEMMASPEC_STATE", str(state))
    fake_runtime.make_models()
    fake.profile("pa", free_port())
    assert fake.run(*UP_PA).code == 0
    try:
        put_away(state)
        for command in (("status",), ("status", "pa"), ("logs", "pa"), ("restart", "pa"), UP_PA, ("down", "pa")):
            done = fake.run(*command)
            assert done.code == 4, (command, done)
            assert "is not connected" in done.err, (command, done)
            assert "Traceback" not in done.err, (command, done)
        assert "try: gemmaspec down pa --force" in done.err, done
        assert len(servers("pa")) == 1
        assert fake.run("down", "pa", "--force").code == 0
        assert servers("pa") == []
        assert "Traceback" not in fake.run("down", "pa", "--force").err
    finally:
        for process in servers("pa"):
            process.kill()
            process.wait(60)
        subprocess.run(["umount", "-l", str(state)], check=False)


UP_PA = ("up", "pa", "--engine", "process")
