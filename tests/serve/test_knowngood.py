"""Known good stacks: kept whole or not at all, a few of them, and which one is gone back to."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.files import state_dir
from gemmaspec.core.lock.document import Lock, LockedModel, Versions
from gemmaspec.run.engine.server import Server
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.stacks import Started
from gemmaspec.serve import knowngood, write_lock
from gemmaspec.serve.knowngood import KEPT, known_goods
from gemmaspec.serve.rollback import choose, only_name
from tests.support.fake_engine import FakeMachine
from tests.support.fake_runtime import Fake
from tests.support.fixtures import up
from tests.support.hub import serve

FACTS = Lock(
    profile="mine",
    engine="process",
    plan=f"sha256:{'a' * 64}",
    target=LockedModel(model="some/target", revision="c" * 40),
    versions=Versions(vllm="0.32.0", torch="2.13.0", transformers="5.19.0"),
)


def started(sequences: int = 1, name: str = "mine") -> Started:
    server = Server(
        name=name, folder=stacks.stack_folder(name), port=8000, model="m", speculates=False,
        command=("vllm", "serve", "some/target", "--max-num-seqs", str(sequences)),
    )  # fmt: skip
    return Started(engine="process", server=server, profile=name)


def keep(sequences: int, facts: Lock = FACTS) -> str:
    """Keep a stack as if it had become ready now."""
    key = knowngood._store(started(sequences), {"plan.json": "{}"}, facts)
    stacks.save(dataclasses.replace(started(sequences), known_good=key))
    return key


def test_the_last_one_that_is_not_the_current_one_is_gone_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = keep(1), keep(2)
    assert choose("mine", None).key == first
    assert choose("mine", second).key == second
    good = choose("mine", first)
    assert good.files() == {"plan.json": "{}"}
    assert good.started.server.command[-1] == "1"
    assert good.facts == FACTS
    knowngood.renew(good, since=None)
    stacks.save(dataclasses.replace(good.started, known_good=first))
    assert choose("mine", None).key == second


def test_after_a_start_that_failed_the_newest_one_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(1)
    second = keep(2)
    stacks.save(started(3))
    assert choose("mine", None).key == second


def test_the_same_stack_again_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(1)
    keep(2)
    keep(1)
    assert [good.number for good in known_goods("mine")] == [3, 2]


def test_only_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [keep(sequences) for sequences in range(1, KEPT + 4)]
    assert [good.key for good in known_goods("mine")] == keys[: -KEPT - 1 : -1]


def test_a_crash_while_keeping_leaves_nothing_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    first = keep(1)
    with monkeypatch.context() as broken:
        broken.setattr("gemmaspec.run.stack.folder.os.fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            keep(2)
    assert [good.key for good in known_goods("mine")] == [first]
    assert [folder.name[:1] for folder in (state_dir() / "known-good" / "mine").iterdir()] == ["1"]


def _stored(sequences: int, at: int, how: str) -> int:
    """Store a stack in a process that is killed at its n-th look at the disk, or for which the disk is full from there.

    Return what ended the process: 0 if it has looked less often.
    """
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    looks = 0

    def look(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal looks
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
            looks += str(state_dir()) in str(arguments[0])
        if looks >= at and how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if looks >= at and event in ("os.mkdir", "os.rename"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sys.addaudithook(look)
    try:
        knowngood._store(started(sequences), {"plan.json": "{}"}, FACTS)
    except BaseException:
        os._exit(1)
    os._exit(0)


@pytest.mark.parametrize(("how", "sequences"), [("killed", 1), ("killed", 3), ("full", 3)])
def test_a_kill_or_a_full_disk_at_any_moment_leaves_the_generations_before_or_after(how: str, sequences: int) -> None:
    keys = [keep(1), keep(2)]
    again, ends = sequences == 1, set[tuple[str, ...]]()
    for at in range(1, 100):
        ended = _stored(sequences, at, how)
        goods = known_goods("mine")
        assert {good.key for good in goods} >= set(keys), f"at look {at}"
        assert [good.number for good in goods] == sorted({good.number for good in goods}, reverse=True)
        ends.add(tuple(good.key for good in goods))
        if not ended:
            break
    else:
        pytest.fail("it looks at the disk more than 100 times")
    assert at > 3
    assert len(ends) == 2, "the state before, and the state after"
    assert (known_goods("mine")[0].key == keys[0]) is again
    assert keep(4) == known_goods("mine")[0].key
    assert not list((state_dir() / "known-good" / "mine").glob(".new-*")), "what was left is removed"


@pytest.mark.parametrize("damage", ["record.json", "facts.lock", "plan.json"])
def test_what_is_not_whole_does_not_count(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    first = keep(1)
    keep(2)
    (known_goods("mine")[0].folder / damage).write_text("{")
    (state_dir() / "known-good" / "mine" / ".new-killed").mkdir()
    assert [good.key for good in known_goods("mine")] == [first]
    keep(3)
    assert not (state_dir() / "known-good" / "mine" / ".new-killed").exists()


@pytest.mark.parametrize("text", ["{% x %}\r\n", "\r", "ü\u2028\n"])
def test_files_come_back_as_they_were(text: str) -> None:
    knowngood._store(started(1), {"chat-template.jinja": text}, FACTS)
    assert known_goods("mine")[0].files() == {"chat-template.jinja": text}


def test_what_lost_a_file_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(1)
    (known_goods("mine")[0].folder / "plan.json").unlink()
    assert known_goods("mine") == []


def test_another_command_may_have_moved_it_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(1)
    good = known_goods("mine")[0]
    good.folder.rename(good.folder.with_name("9-" + good.key))
    knowngood.renew(good, since=None)
    assert [one.key for one in known_goods("mine")] == [good.key]


def test_a_record_of_another_profile_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(1)
    record = known_goods("mine")[0].folder / "record.json"
    record.write_text(record.read_text().replace('"mine"', '"other"'))
    assert known_goods("mine") == []


def test_nothing_to_go_back_to_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rollback"]) == 2
    assert "no stack has ever been ready here" in capsys.readouterr().err
    keep(1)
    assert only_name() == "mine"
    assert run(["rollback", "mine"]) == 2
    assert "mine has no known good stack other than the current one" in capsys.readouterr().err
    assert run(["rollback", "mine", "--to", "20260101T000000Z-12345678"]) == 2
    with pytest.raises(UsageError, match="nothing is kept under 'never-started'"):
        choose("never-started", None)


def test_an_error_of_rollback_names_the_command_that_helps() -> None:
    keep(1)
    hints = []
    for name in ("mine", "tiny-cpu", "never-started"):
        with pytest.raises(UsageError) as failed:
            choose(name, "77")
        hints.append(failed.value.hint)
    assert hints == ["gemmaspec rollback mine --list", "gemmaspec up tiny-cpu", "gemmaspec status"]


def test_the_list_marks_the_current_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    keep(1)
    keep(2)
    assert run(["rollback", "mine", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "ID"
    assert lines[1].startswith("*  2-")
    assert lines[2].startswith("   1-")
    assert run(["rollback", "mine", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["known_good"]
    assert [row["current"] for row in rows] == [True, False]
    assert rows[0]["facts"]["target.revision"] == "c" * 40


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (errno.EACCES, "no permission to read or write"),
        *((why, f"{os.strerror(why)}:") for why in (errno.EIO, errno.ENOTCONN, errno.ESTALE)),
    ],
)
def test_a_folder_of_another_user_and_a_disk_that_is_away_are_told(
    why: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away() -> None:
        raise OSError(why, os.strerror(why), "/state/known-good")

    monkeypatch.setattr("gemmaspec.serve.knowngood.names", away)
    assert run(["rollback", "--json"]) == 4
    told = capsys.readouterr()
    assert json.loads(told.out)["error"]["message"] == f"{said} /state/known-good"
    assert "Traceback" not in told.err


@pytest.mark.parametrize("command", [["rollback", "mien", "--list"], ["rollback", "mien"]])
def test_a_name_that_never_ran_is_an_unknown_name(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) == 2
    nothing = "error: nothing is kept under 'mien': no stack named 'mien' was started on this machine"
    assert capsys.readouterr() == ("", f"{nothing} (started: none)\n  try: gemmaspec status\n")
    keep(1)
    assert run(command) == 2
    assert "(started: mine); did you mean mine?" in capsys.readouterr().err


def test_a_list_of_what_was_never_ready_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    stacks.save(started(1))
    assert run(["rollback", "mine", "--list"]) == 0
    said = "mine has not been ready yet, so nothing is kept to go back to; next: gemmaspec status mine\n"
    assert capsys.readouterr() == ("", said)
    assert run(["rollback", "mine", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["known_good"] == []


def test_the_list_says_when_each_generation_was_started(capsys: pytest.CaptureFixture[str]) -> None:
    def kept_at(since: float) -> None:
        knowngood._store(dataclasses.replace(started(1), since=since), {"plan.json": "{}"}, FACTS)

    def listed() -> float:
        capsys.readouterr()
        assert run(["rollback", "mine", "--list", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["known_good"]
        return float(row["since"])

    kept_at(1000.0)
    assert listed() == 1000
    kept_at(2000.0)  # an `up` of the same
    assert listed() == 2000
    knowngood.renew(known_goods("mine")[0], since=3000.0)  # a rollback to it
    assert listed() == 3000
    assert run(["rollback", "mine", "--list"]) == 0
    assert f"{int((time.time() - 3000) // 86_400)} d ago" in capsys.readouterr().out


def test_completion_knows_names_and_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(1)
    environment = {**os.environ, "COMP_CWORD": "4", "_GEMMASPEC_COMPLETE": "complete_bash"}
    for words, found in (
        ("gemmaspec rollback mine --to 1", known_goods("mine")[0].id),
        ("gemmaspec rollback mine --stack 2", ""),
    ):
        command = [sys.executable, "-m", "gemmaspec"]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**environment, "COMP_WORDS": words}, check=False
        )
        assert done.stdout.strip() == found
    for command in ("lock", "pull", "doctor"):
        asked = {**environment, "COMP_WORDS": f"gemmaspec {command} spark-31b-e2", "COMP_CWORD": "2"}
        done = subprocess.run(
            [sys.executable, "-m", "gemmaspec"], capture_output=True, text=True, env=asked, check=False
        )
        assert done.stdout.strip() == "spark-31b-e2b"


def test_a_changed_model_folder_stops_a_rollback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    local = LockedModel(model=str(tmp_path), digest=f"sha256:{'e' * 64}")
    keep(1, FACTS.model_copy(update={"target": local}))
    stacks.save(started(2))
    assert run(["rollback", "mine"]) == 3
    assert f"target.model: {tmp_path} has changed" in capsys.readouterr().err


def test_another_release_in_the_same_environment_stops_a_rollback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, text in (
        ("vllm/__init__.py", ""),
        ("vllm/_version.py", "__version__ = '0.33.0'\n"),
        ("torch/version.py", "__version__ = '2.13.0+cpu'\n"),
    ):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch(mode=0o755)
    before = started(1)
    with_python = dataclasses.replace(before, server=dataclasses.replace(before.server, python=python))
    knowngood._store(with_python, {"plan.json": "{}"}, FACTS)
    stacks.save(started(2))
    assert run(["rollback", "mine"]) == 3
    err = capsys.readouterr().err
    assert f"{python} has changed: vllm was 0.32.0, is 0.33.0" in err
    assert "pip install vllm==0.32.0" in err


def test_an_image_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from gemmaspec.core.lock.document import LockedImage

    monkeypatch.setattr("gemmaspec.serve.rollback.image_identity", lambda _: None)
    image = LockedImage(name="gemmaspec/vllm-cpu:0.32.0", id=f"sha256:{'f' * 64}")
    with_image = FACTS.model_copy(update={"engine": "docker", "image": image})
    keep(1, with_image)
    stacks.save(started(2))
    assert run(["rollback", "mine"]) == 4
    err = capsys.readouterr().err
    assert f"the image of this stack, sha256:{'f' * 64}, is no longer on this machine" in err
    assert "gemmaspec rollback --list" in err


def test_what_cannot_be_stopped_keeps_its_files(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    keep(1)
    stacks.save(started(2))
    machine.running["mine"] = "process", started(2).server
    machine.fails["stop"] = GemmaspecError("another gemmaspec process is starting or stopping mine")
    assert run(["rollback", "mine"]) == 1
    assert "another gemmaspec process is starting" in capsys.readouterr().err
    assert stacks.find("mine") == started(2)
    assert not (stacks.stack_folder("mine") / "plan.json").exists()


def test_diff_of_what_does_not_run_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["restart", "tiny-cpu", "--dry-run"]) == 2
    assert "no stack named 'tiny-cpu' was started" in capsys.readouterr().err
    stacks.save(started(1))
    assert run(["restart", "mine", "--dry-run"]) == 1
    assert "mine is not running" in capsys.readouterr().err


@pytest.mark.parametrize("record", ['{"server": "x"}', '{"server": []}', "[" * 200_000])
def test_a_record_that_is_none_is_not_read(record: str, capsys: pytest.CaptureFixture[str]) -> None:
    stacks.save(started(1))
    (stacks.stack_folder("mine") / "record.json").write_text(record)
    assert stacks.started_stacks() == []
    assert run(["restart", "mine", "--dry-run"]) == 2


def test_a_profile_s_path_is_kept_as_it_is_found_from_anywhere(
    machine: FakeMachine, profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (profiles / "mine.yaml").write_text("extends: tiny-cpu\nname: mine\nserve: {port: 8604}\n")
    monkeypatch.chdir(profiles)
    assert up(name="./mine.yaml") == 0
    assert up(name="tiny-cpu") == 0
    assert stacks.find("mine").profile == str(profiles / "mine.yaml")
    assert stacks.find("tiny-cpu").profile == "tiny-cpu"


def test_a_restart_that_cannot_be_rendered_stops_nothing(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks.save(dataclasses.replace(started(1), profile="/nowhere/mine.yaml"))
    machine.running["mine"] = "process", started(1).server
    assert run(["restart", "mine"]) == 2
    assert machine.calls == []
    assert "the profile file /nowhere/mine.yaml does not exist" in capsys.readouterr().err


def test_the_stacks_of_an_older_gemmaspec_are_gone_back_to_by_their_time(capsys: pytest.CaptureFixture[str]) -> None:
    old = [keep(sequences) for sequences in (1, 2)]
    for good, second in zip(known_goods("mine"), (2, 1), strict=True):
        good.folder.rename(good.folder.with_name(f"20261121T18000{second}Z-{good.key}"))
    stacks.save(dataclasses.replace(started(2), known_good=old[1]))
    assert [(good.number, good.key) for good in known_goods("mine")] == [(0, old[1]), (0, old[0])]
    assert choose("mine", None).key == old[0]
    assert choose("mine", f"20261121T180002Z-{old[1]}").key == old[1]
    new = keep(3)
    assert [good.key for good in known_goods("mine")] == [new, old[1], old[0]]
    knowngood.renew(choose("mine", old[0]), since=None)
    assert [good.number for good in known_goods("mine")] == [2, 1, 0]
    assert [choose("mine", "2").key, choose("mine", "1").key] == [old[0], new]
    with pytest.raises(UsageError, match="no known good stack with the number or id 0"):
        choose("mine", "0")
    capsys.readouterr()
    assert run(["rollback", "mine", "--list", "--json"]) == 0
    assert [row["number"] for row in json.loads(capsys.readouterr().out)["known_good"]] == [2, 1, None]


def test_the_lock_of_a_running_server_pins_the_commits_at_which_it_runs(
    machine: FakeMachine, fake: Fake, profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (profiles / "mine.yaml").write_text(
        f"extends: tiny-cpu\nname: mine\ntarget: {{model: some/target}}\nruntime: {{python: {fake.python}, vllm: null}}\n"
    )
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(profiles))
    stacks.save(dataclasses.replace(started(1), known_good=keep(1), outcome="ready"))
    machine.running["mine"] = "process", started(1).server
    machine.docker_is_away = EnvironmentMissing("docker is not answering")
    with serve() as hub:
        moved_on = hub.add("some/target", {"config.json": b"{}"})
        hub.aim(monkeypatch, tmp_path)
        written = write_lock.lock_profile("mine", None, lambda _: None)
        assert written.lock.target.revision == "c" * 40
        machine.running.clear()
        assert write_lock.lock_profile("mine", None, lambda _: None).lock.target.revision == moved_on


def test_an_older_record_of_a_failed_start_still_knows_what_was_ready() -> None:
    ready = stacks.Options(profile="mine", overrides=("serve.max_num_seqs=4",))
    stacks.save(dataclasses.replace(started(1), outcome="failed", last_ready=ready))
    record = stacks.stack_folder("mine") / "record.json"
    content = json.loads(record.read_text())
    content["before"] = content.pop("last_ready")
    record.write_text(json.dumps(content))
    assert stacks.find("mine").last_good_options == ready


def test_an_older_record_without_these_fields_is_still_read() -> None:
    stacks.save(started(1))
    record = stacks.stack_folder("mine") / "record.json"
    content = json.loads(record.read_text())
    for name in ("locked", "known_good", "hub_cache"):
        del content[name]
    record.write_text(json.dumps(content))
    assert stacks.find("mine") == started(1)
