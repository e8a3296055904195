"""k of a running server: the scheduler's half over files, the command's half over a fake engine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from gemmaspec import data
from gemmaspec.cli.app import run
from gemmaspec.deploy import live_k as use_case
from gemmaspec.deploy import stacks
from gemmaspec.engine.server import Server
from gemmaspec.errors import UsageError
from gemmaspec.files import state_dir
from gemmaspec.launcher import launch
from gemmaspec.launcher.live_k import CONTROL, USED, LiveK, LiveKScheduler
from gemmaspec.lint.check import check
from gemmaspec.live.live_k import parse_in_use, wished_k
from gemmaspec.patching.patch import Shelf
from gemmaspec.profile.load import load_profile
from gemmaspec.stack.build import build_stack
from tests.fake_engine import FakeEngine, FakeMachine
from tests.launching import Place, make_place, plan_of
from tests.lint_cases import BASE

LIVE = ("--set", "speculative.live_k=true")
PYTHON = ("--set", f"runtime.python={sys.executable}")


# The scheduler's half


@pytest.fixture
def control(tmp_path: Path) -> Path:
    return tmp_path / "k.json"


@pytest.fixture
def k(tmp_path: Path, control: Path) -> LiveK:
    return LiveK(str(control), str(tmp_path / "used.json"), started=4)


def ask(control: Path, k: object, request: str = "1") -> None:
    """Replace the file whole, as the command does."""
    fresh = control.with_suffix(".new")
    fresh.write_text(json.dumps({"k": k, "id": request}))
    fresh.replace(control)


def used(k: LiveK) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(k.used).read_text())
    return document


def test_a_new_k_is_taken_over_once_and_written_down(k: LiveK, control: Path) -> None:
    assert (used(k)["started_k"], used(k)["k"], used(k)["id"]) == (4, 4, "")
    assert k.look() is None
    for wanted in (2, 0, 4):
        ask(control, wanted, f"request-{wanted}")
        assert k.look() == wanted
        assert k.look() is None
        assert (used(k)["k"], used(k)["id"]) == (wanted, f"request-{wanted}")
    found = parse_in_use(Path(k.used).read_bytes())
    assert found
    assert (found.started_k, found.k) == (4, 4)


HOSTILE = (
    b"", b"9", b"[]", b"null", b'{"k": 5}', b'{"k": -1}', b'{"k": true}', b'{"k": 2.0}', b'{"k": "2"}', b'{"k": NaN}',
    b'{"id": "2"}', b'{"k": 2, "id": 3}', b'{"k": 2, "id": "' + b"x" * 65 + b'"}', b"[" * 4000, b"\xff\xfe", b" " * 4097,
    b'{"k": ' + b"9" * 4000 + b"}",
)  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE, ids=lambda content: content[:16].decode("latin-1"))
def test_what_is_no_k_is_told_once_and_changes_nothing(
    content: bytes, k: LiveK, control: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask(control, 2)
    assert k.look() == 2
    control.write_bytes(content)
    assert k.look() is None
    control.write_bytes(content + b" ")
    assert k.look() is None
    assert (k.k, used(k)["k"]) == (2, 2)
    (told,) = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert "k stays 2" in told


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_not_read(kind: str, k: LiveK, control: Path, tmp_path: Path) -> None:
    if kind == "link":
        ask(tmp_path / "other.json", 1)
        control.symlink_to(tmp_path / "other.json")
    elif kind == "pipe":
        os.mkfifo(control)
    else:
        control.mkdir()
    assert k.look() is None
    assert k.k == 4


def test_a_file_that_vanishes_or_a_folder_that_cannot_be_written_stops_nothing(k: LiveK, control: Path) -> None:
    ask(control, 2)
    assert k.look() == 2
    control.unlink()
    assert k.look() is None
    assert k.k == 2
    Path(k.used).unlink()
    Path(k.used).mkdir()
    ask(control, 1)
    assert k.look() == 1


class FakeScheduler:
    """Fake for vLLM's class: the table of k, and a step that says what it would draft."""

    num_spec_tokens = 4

    def __init__(self, *, table: list[int] | None) -> None:
        self.dynamic_sd_lookup = table

    def schedule(self, throttle_prefills: bool = False) -> tuple[int, bool]:
        assert self.dynamic_sd_lookup
        return self.dynamic_sd_lookup[3], throttle_prefills


class OnFake(LiveKScheduler, FakeScheduler):
    pass


def test_the_table_holds_the_started_k_and_then_what_the_file_says(
    control: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTROL, str(control))
    monkeypatch.setenv(USED, str(tmp_path / "used.json"))
    one = OnFake(table=[0, 4, 3, 2, 1, 0])
    assert one.schedule() == (4, False)
    ask(control, 1)
    assert one.schedule(throttle_prefills=True) == (1, True)
    assert one.dynamic_sd_lookup == [1] * 6
    with pytest.raises(RuntimeError, match="does not use num_speculative_tokens_per_batch_size"):
        OnFake(table=None)


# The stack and the launcher


def test_a_profile_that_does_not_ask_for_it_has_nothing_of_it() -> None:
    stack = build_stack(load_profile("tiny-cpu"), form="folder")
    assert "live_k" not in "".join(stack.files.values()).replace(stack.files["launch.py"], "")
    assert "live_k.py" not in stack.files


def test_a_profile_that_asks_for_it_carries_the_scheduler_and_every_k() -> None:
    stack = build_stack(load_profile("tiny-cpu", overrides=["speculative.live_k=true"]), form="folder")
    digest = hashlib.sha256(stack.files["live_k.py"].encode()).hexdigest()
    assert json.loads(stack.files["plan.json"])["live_k"] == digest
    config = json.loads(stack.files["speculative-config.json"])
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 1, 4], [2, 2, 3], [3, 3, 2], [4, 4, 1], [5, 5, 0]]
    assert "live_k" not in config
    assert "gemmaspec_live_k.scheduler" in stack.files["compose.yaml"]
    single = build_stack(load_profile("tiny-cpu", overrides=["speculative.live_k=true"]), form="single-file")
    assert "live_k-py" in single.files["compose.yaml"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    folder = tmp_path / "stack"
    folder.mkdir()
    for file in (data.LAUNCHER, data.LIVE_K, *map(data.LAUNCHER.with_name, (launch.ORIGINS, *launch.ATTEST))):
        shutil.copy(file, folder)
    monkeypatch.setattr(data, "LAUNCHER", folder / "launch.py")
    return make_place(tmp_path)


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_launcher_puts_the_scheduler_on_the_path_behind_the_overlay(place: Place) -> None:
    place.run_dir.mkdir(mode=0o700)
    (place.run_dir / "k.json").write_text("of the start before")
    done = place.launch(plan_of(live_k=digest_of(data.LIVE_K)))
    assert done.code == 0, done.err
    modules = place.run_dir / "modules"
    assert done.said["pythonpath"].split(os.pathsep) == [
        str(place.run_dir / name) for name in ("overlay", "attest", "modules")
    ]
    assert digest_of(modules / "gemmaspec_live_k.py") == digest_of(data.LIVE_K)
    assert not (place.run_dir / "k.json").exists()
    assert place.launch(plan_of()).code == 0
    assert not modules.exists()


@pytest.mark.parametrize(("damage", "code"), [("changed", 2), ("missing", 4)])
def test_a_scheduler_that_is_not_the_rendered_one_stops_the_start(place: Place, damage: str, code: int) -> None:
    plan = plan_of(live_k=digest_of(data.LIVE_K))
    file = data.LAUNCHER.with_name("live_k.py")
    file.write_text(file.read_text() + "# more\n") if damage == "changed" else file.unlink()
    done = place.launch(plan)
    assert done.code == code
    assert "live_k.py" in done.err
    assert not done.out


def test_a_plan_whose_live_k_is_no_digest_is_refused() -> None:
    with pytest.raises(ValueError, match="live_k is not a sha256"):
        launch.parse_plan(plan_of(live_k="../../etc"))


# The command's half


@pytest.mark.parametrize(
    "content",
    [None, b"", b"{}", b"[]", b"[" * 9999, b'{"started_k": 4, "k": 5, "id": "", "since": 0}',
     b'{"started_k": true, "k": 1, "id": "", "since": 0}', b'{"started_k": 4, "k": 1, "id": 7, "since": 0}',
     b'{"started_k": 4, "k": 1, "id": "", "since": Infinity}', b'{"started_k": 4, "k": 1, "id": "", "since": NaN}'],
)  # fmt: skip
def test_a_server_that_says_nonsense_says_nothing(content: bytes | None) -> None:
    assert parse_in_use(content) is None


@pytest.mark.parametrize(("text", "wanted"), [("off", 0), ("auto", 4), ("0", 0), ("4", 4), ("03", 3)])
def test_what_a_person_can_ask_for(text: str, wanted: int) -> None:
    assert wished_k(text, "mine", started_k=4) == wanted


@pytest.mark.parametrize("text", ["5", "-1", "on", "", "2.0", "٢", "9" * 99])
def test_what_a_person_cannot_have(text: str) -> None:
    with pytest.raises(UsageError):
        wished_k(text, "mine", started_k=4)


class Serving:
    """The scheduler's half behind a fake engine: it takes a step whenever it is looked at, unless it hangs."""

    def __init__(self) -> None:
        self.halves: dict[str, LiveK] = {}
        self.hangs = False
        self.reads = 0

    def read(self, _: FakeEngine, server: Server, path: str) -> bytes | None:
        self.reads += 1
        if server.live_k is None or not path.endswith("/k.json"):
            return None
        half = self.halves.get(server.name)
        if half is None:
            server.run_dir.mkdir(parents=True, exist_ok=True)
            half = LiveK(str(server.folder / "k.json"), str(server.run_dir / "k.json"), started=server.live_k)
            self.halves[server.name] = half
        if not self.hangs:
            half.look()
        return Path(half.used).read_bytes()


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch, profiles: Path) -> Serving:
    for name in ("tiny-target", "tiny-draft"):
        (state_dir() / "tiny" / name).mkdir(parents=True)
        (state_dir() / "tiny" / name / "config.json").write_text("{}")
    (profiles / "mine.yaml").write_text("extends: tiny-cpu\nname: mine\nserve: {port: 8601}\n")
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(profiles))
    FakeMachine().install(monkeypatch)
    monkeypatch.setattr("gemmaspec.deploy.status.healthy", lambda _: True)
    monkeypatch.setattr(use_case, "_nudge", lambda *_, **__: None)
    monkeypatch.setattr(use_case, "CONFIRM_S", 0.1)
    found = Serving()
    monkeypatch.setattr(FakeEngine, "read", lambda engine, server, path: found.read(engine, server, path))
    return found


def up(*arguments: str, engine: str = "process") -> int:
    return run(["up", "mine", "--engine", engine, *PYTHON, *arguments])


@pytest.mark.parametrize("engine", ["process", "docker"])
def test_k_is_shown_and_changed(engine: str, serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert up(*LIVE, engine=engine) == 0
    capsys.readouterr()
    assert run(["k", "mine"]) == 0
    assert capsys.readouterr().out.startswith("mine: k is 4 (started with 4), since 20")
    assert run(["k", "mine", "2"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("mine: k is 2 (started with 4), since")
    assert "mine: k was 4; confirmed after" in told.err
    assert run(["k", "mine", "off", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["k"], document["before"], document["started_k"]) == (0, 2, 4)
    assert run(["status", "mine"]) == 0
    assert "k         0 (started with 4): nothing is drafted" in capsys.readouterr().out
    assert run(["k", "mine", "auto"]) == 0


def test_a_new_start_begins_with_the_profile_s_k(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    up(*LIVE)
    assert run(["k", "mine", "1"]) == 0
    assert (state_dir() / "stacks" / "mine" / "k.json").exists()
    assert up(*LIVE) == 0
    assert "already running" in capsys.readouterr().err
    assert (state_dir() / "stacks" / "mine" / "k.json").exists()
    assert run(["restart", "mine"]) == 0
    assert not (state_dir() / "stacks" / "mine" / "k.json").exists()


def test_a_server_that_takes_no_step_keeps_its_k(serving: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    up(*LIVE)
    assert run(["k", "mine", "3"]) == 0
    serving.hangs = True
    capsys.readouterr()
    assert run(["k", "mine", "1"]) == 7
    assert "mine did not take k=1 within 0 s, because it took no step; k stays 3" in capsys.readouterr().err
    serving.hangs = False
    assert run(["k", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["k"] == 3


def test_each_reason_why_there_is_no_k_names_the_next_command(
    serving: Serving, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        return run(["k", *arguments]), capsys.readouterr().err

    assert told("mine")[0] == 2
    up()
    assert told("mine", "2")[0] == 2
    assert "gemmaspec restart mine --set speculative.live_k=true" in told("mine", "2")[1]
    up("--no-spec")
    assert "runs without speculation" in told("mine")[1]
    up(*LIVE)
    assert told("mine", "7")[0] == 2
    assert "--set speculative.num_speculative_tokens=7" in told("mine", "7")[1]
    monkeypatch.setattr(FakeEngine, "remote", True)
    assert told("mine", "2")[0] == 4
    assert "on another machine" in told("mine", "2")[1]
    monkeypatch.setattr(FakeEngine, "remote", False)
    monkeypatch.setattr(FakeEngine, "read", lambda *_: None)
    assert told("mine")[0] == 4
    assert "gemmaspec wait mine" in told("mine")[1]
    run(["down", "mine"])
    assert told("mine")[0] == 4
    assert "gemmaspec up mine" in told("mine")[1]


def test_a_stack_at_k_0_is_asked_without_a_draft_only_if_it_has_drafted(serving: Serving) -> None:
    up(*LIVE)
    started = stacks.find("mine")
    engine = stacks.engine_of(started)
    assert use_case.expected(started, engine).speculates
    assert run(["k", "mine", "off"]) == 0
    assert not use_case.expected(started, engine).speculates
    new = stacks.Started(engine="process", server=started.server, profile="mine", outcome="starting")
    assert use_case.expected(new, engine).speculates


def test_top_asks_the_server_again_only_after_a_change(serving: Serving) -> None:
    up(*LIVE)
    started, reader = stacks.find("mine"), use_case.Reader()
    for _ in range(5):
        found = reader.read(started)
        assert found
        assert found.k == 4
    assert serving.reads == 1
    run(["k", "mine", "1"])
    before = serving.reads
    assert [reader.read(started).k for _ in range(5)] == [1] * 5  # type: ignore[union-attr]
    assert serving.reads == before + 1


@pytest.mark.parametrize(
    ("release", "sets", "refused"),
    [
        ("0.32.0", ("machine=cpu",), set()),
        ("0.32.0", (), {"GS820"}),  # draft_model under v2 drafts the started k
        ("0.32.0", ("speculative.method=mtp",), {"GS820"}),
        ("0.32.0", ("speculative.method=mtp", "machine=cpu"), {"GS820"}),
        ("0.32.1", ("speculative.method=mtp",), {"GS820"}),
        ("0.31.0", ("speculative.method=mtp",), {"GS820"}),
        ("0.33.0", ("speculative.method=mtp",), {"GS820"}),
        ("0.32.0", ("speculative.method=mtp", "env.VLLM_USE_V2_MODEL_RUNNER='0'"), {"GS820"}),
        ("0.32.0", ("speculative.method=dspark",), {"GS820"}),
        ("0.32.0", ("speculative.method=mtp", "serve.extra_args=[--data-parallel-size=2]"), {"GS820", "GS821"}),
        ("0.32.0", ("speculative.method=mtp", "serve.extra_args=[-dp, '2']"), {"GS820", "GS821"}),
        ("0.32.0", ("speculative.method=mtp", "serve.extra_args=[--scheduler-cls, mine.Own]"), {"GS820", "GS821"}),
        ("0.32.0", ("speculative.method=mtp", "serve.pipeline_parallel_size=2"), {"GS820", "GS821"}),
        ("0.32.0", ("speculative.method=mtp", "speculative.enable_adaptive_verification=true"), {"GS820", "GS821"}),
    ],
)
def test_lint_refuses_it_where_nobody_has_shown_it(
    release: str, sets: tuple[str, ...], refused: set[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(BASE)
    head = ("draft.model=google/gemma-4-31B-it-assistant",) if "speculative.method=mtp" in sets else ()
    loaded = load_profile(str(file), overrides=["speculative.live_k=true", *head, *sets])
    found = check(loaded, patches=Shelf((data.PATCHES,)), asked=release)
    assert {one.code for one in found if one.code.startswith("GS82")} == refused
