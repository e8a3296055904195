"""`smoke` as a command, over a fake server: rows, exit codes, what is kept, and what `status` shows of it."""

from __future__ import annotations

import dataclasses
import json
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from gemmaspec.cli.app import run
from gemmaspec.core import records
from gemmaspec.core.live.verdict import SmokeVerdict
from gemmaspec.core.profile.load import load_profile
from gemmaspec.look import smoke
from gemmaspec.measure.smoke.catalogue import CHECKS
from gemmaspec.measure.smoke.row import SmokeRow, verdict_of
from gemmaspec.run.engine.server import State
from gemmaspec.run.kept import stacks, verdicts
from gemmaspec.run.kept.stacks import Started
from tests.support.fake_chat import FakeChat, Reply, Spoil, fake_chat
from tests.support.fake_engine import FakeMachine

PARSERS = ("chat.reasoning_parser=gemma4", "chat.tool_call_parser=gemma4", "smoke=null")
"""What a profile for a real model offers; the tiny ones name the checks that mean something for a toy."""
Start = Callable[..., FakeChat]


@pytest.fixture
def start(machine: FakeMachine) -> Iterator[Start]:
    """Start fakes as running stacks."""
    fakes: list[Any] = []
    machine.report = {"vllm": "0.32.0"}

    def begin(
        spoil: Spoil | None = None, *, name: str = "mine", overrides: tuple[str, ...] = PARSERS, key: bool = False,
        draft: bool = True,
    ) -> FakeChat:  # fmt: skip
        context = fake_chat(spoil)
        fakes.append(context)
        fake: FakeChat = context.__enter__()
        fake.speculates = draft
        server = dataclasses.replace(fake.server(needs_api_key=key), name=name)
        machine.running[name] = ("process", server)
        stacks.save(
            Started(
                engine="process", server=server, profile="tiny-cpu", overrides=overrides, outcome="ready", since=5.0
            )
        )
        return fake

    yield begin
    for one in fakes:
        one.__exit__(None, None, None)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run(["smoke", *arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


def rows(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in found["rows"]}


def test_a_good_server_passes_all_and_the_verdict_is_kept(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start()
    code, found = document(capsys, "mine")
    assert code == 0, found
    assert (found["ok"], found["verdict"], found["vllm"]) == (True, "18 of 18 passed", "0.32.0")
    assert rows(found)["S17"] == {**rows(found)["S17"], "word": "skipped", "curl": None, "known": []}
    kept = verdicts.last_smoke("mine")
    assert kept is not None
    assert (kept.counts["pass"], kept.since, kept.failed) == (18, 5.0, ())


def test_what_the_profile_does_not_offer_is_skipped_by_name(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start(
        overrides=(
            "smoke=null",
            "chat.tool_call_parser=null",
            "chat.reasoning_parser=null",
            "serve.limit_mm_per_prompt={image: 0}",
            "serve.enable_prefix_caching=false",
        ),
        draft=False,
    )
    code, found = document(capsys, "mine")
    why = {id_: row["seen"] for id_, row in rows(found).items() if row["word"] == "skipped"}
    assert set(why) == {"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S12", "S13", "S14", "S17", "S18", "S19"}
    assert why["S13"] == "the profile allows no images"
    assert why["S12"] == "the profile turns the prefix cache off"
    assert code == 0


def test_a_failure_shows_a_curl_without_the_key_the_issue_and_the_fix(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "key-of-the-server")

    def spoil(body: dict[str, Any], reply: Reply, fake: FakeChat) -> Reply:
        leaking = body["stream"] and body["chat_template_kwargs"]["enable_thinking"]
        return reply.but(content="<|channel>key-of-the-server") if leaking and "tools" in body else reply

    fake = start(spoil, key=True)
    code, found = document(capsys, "mine")
    row = rows(found)["S2"]
    assert (code, found["failed"], row["word"]) == (1, ["S2"], "fail")
    words = shlex.split(row["curl"])
    assert words[:2] == ["curl", "-N"]
    assert words[2] == f"{fake.server().base_url}/v1/chat/completions"
    assert "Authorization: Bearer $VLLM_API_KEY" in words
    assert json.loads(words[-1])["stream"] is True
    assert row["known"][0]["url"] == "https://github.com/vllm-project/vllm/issues/39885"
    assert row["fix"]
    assert "key-of-the-server" not in json.dumps(found)
    assert {one["Authorization"] for one in fake.headers} == {"Bearer key-of-the-server"}
    assert run(["smoke", "mine", "--only", "S2"]) == 1
    text = capsys.readouterr().out
    assert "key-of-the-server" not in text
    assert "         known     vllm #39885 (open)" in text
    assert f"         ask       {row['curl']}\n" in text


def test_a_long_request_is_in_a_file_that_the_curl_names(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start(lambda body, reply, _: reply.but(content="HARBOUR") if "TAMARISK" in json.dumps(body["messages"]) else reply)
    _, found = document(capsys, "mine", "--only", "S11")
    file = Path(shlex.split(rows(found)["S11"]["curl"])[-1].removeprefix("@"))
    assert "TAMARISK" in json.loads(file.read_text())["messages"][0]["content"]


def test_a_warning_fails_nothing_and_an_unknown_is_no_success(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start(lambda body, reply, _: reply.but(status=400, said="not supported") if "min_p" in body else reply)
    code, found = document(capsys, "mine", "--only", "S14")
    assert (code, found["warned"], found["verdict"]) == (0, ["S14"], "0 of 1 passed, S14 warned")
    start(lambda body, reply, _: reply.but(content=None, finish="length"), name="cut")
    code, found = document(capsys, "cut", "--only", "S3")
    assert (code, found["verdict"]) == (4, "0 of 1 passed, 1 unknown")


def test_a_part_of_the_checks_replaces_no_verdict(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start()
    document(capsys, "mine", "--only", "S16")
    assert verdicts.last_smoke("mine") is None


def test_greedy_texts_are_compared_with_another_stack(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start()
    other = start(name="plain", draft=False)
    code, found = document(capsys, "mine", "--only", "S17", "--against", "plain")
    assert (code, rows(found)["S17"]["word"]) == (0, "pass")
    url = f"http://127.0.0.1:{other.server_address[1]}"
    assert document(capsys, "mine", "--only", "S17", "--against", url)[0] == 0


def test_a_reference_that_speculates_too_is_refused(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    start()
    assert run(["smoke", "mine", "--against", "mine"]) == 2
    assert "speculates too" in capsys.readouterr().err
    assert run(["smoke", "mine", "--against", "ftp://example.org"]) == 2
    assert "--against" in capsys.readouterr().err


def test_the_stored_acceptance_is_benchs_own_then_the_published_one(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start()
    file = platformdirs.user_config_path("gemmaspec") / "measured" / "tiny-cpu.json"
    file.parent.mkdir(parents=True)
    row = {
        "method": "draft_model", "k": 4, "concurrency": 1, "context": 20, "tokens_per_second": 90.0,
        "acceptance": [1.0, 1.0, 1.0, 1.0], "machine": "cpu",
    }  # fmt: skip
    file.write_text(json.dumps({"schema": 1, "rows": [row]}))
    _, found = document(capsys, "mine", "--only", "S18")
    assert rows(found)["S18"]["seen"] == "acceptance length 4.00, stored 5.00"
    file.write_text(json.dumps({"schema": 1, "rows": [row, {**row, "k": 2, "acceptance": [1.0, 1.0]}]}))
    loaded = load_profile("tiny-cpu", overrides=["speculative.k_by_requests={1: 2, 2: 4}"])
    assert smoke._stored_length(loaded) == 3.0
    file.write_text("damaged")
    assert rows(document(capsys, "mine", "--only", "S18")[1])["S18"]["seen"].endswith("nothing stored")


def test_what_does_not_run_or_is_not_named_is_told(
    start: Start, machine: FakeMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    start()
    assert run(["smoke"]) == 2
    assert run(["smoke", "mine", "--only", "S99"]) == 2
    assert run(["smoke", "nobody"]) == 2
    machine.running.clear()
    machine.ended = State(status="exited", detail="fake")
    assert run(["smoke", "mine"]) == 2
    assert "gemmaspec restart mine" in capsys.readouterr().err
    machine.ended = State(status="unknown", detail="no daemon")
    assert run(["smoke", "mine"]) == 4


def test_the_list_needs_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["smoke", "--list"]) == 0
    text = capsys.readouterr().out
    assert all(f"{one.id} " in text and one.name in text for one in CHECKS)
    assert run(["smoke", "--list", "--json", "--only", "S7"]) == 0
    assert json.loads(capsys.readouterr().out)["checks"] == [
        {"id": "S7", "name": "streamed tool calls are whole", "counts": True, "needs": ["tools"]}
    ]


def test_status_shows_the_last_verdict_and_whether_it_is_of_this_start(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start()
    run(["status", "mine"])
    assert "smoke" not in capsys.readouterr().out
    verdict = SmokeVerdict(
        at=stacks.now() - 200, since=5.0, vllm=None, counts={"pass": 15, "fail": 1, "skipped": 2, "unknown": 0},
        failed=("S9",),
    )  # fmt: skip
    verdicts.keep_smoke("mine", verdict)
    run(["status", "mine"])
    assert "smoke     15 of 16 passed, S9 failed, 3 min ago\n" in capsys.readouterr().out
    stacks.save(dataclasses.replace(stacks.find("mine"), since=9.0))
    run(["status", "mine"])
    assert "3 min ago, before the last start" in capsys.readouterr().out
    run(["status", "mine", "--json"])
    (one,) = json.loads(capsys.readouterr().out)["stacks"]
    assert (one["smoke"]["verdict"], one["smoke"]["of_this_start"]) == ("15 of 16 passed, S9 failed", False)


def test_a_verdict_survives_being_kept_and_a_damaged_one_counts_as_missing() -> None:
    made = [
        SmokeRow(id="S1", name="a", word="pass", counts=True, seen=""),
        SmokeRow(id="S14", name="b", word="fail", counts=False, seen=""),
        SmokeRow(id="S9", name="c", word="fail", counts=True, seen=""),
        SmokeRow(id="S3", name="d", word="unknown", counts=True, seen=""),
        SmokeRow(id="S2", name="e", word="skipped", counts=True, seen=""),
    ]
    verdict = verdict_of(made, at=1.0, since=None, vllm="0.32.0")
    assert verdict.line() == "1 of 4 passed, S9 failed, S14 warned, 1 unknown"
    assert records.parse(SmokeVerdict, records.text_of(verdict)) == verdict
    for damaged in (b"", b"{}", b"[]", b"[" * 9999, records.text_of(verdict).replace("1.0", '"x"').encode()):
        assert records.parse(SmokeVerdict, damaged) is None


def test_a_profile_names_the_checks_that_mean_something(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    """The tiny profiles do: a toy follows no schema, and is not called broken for that."""

    def spoil(body: dict[str, Any], reply: Reply, _: int) -> Reply:
        return reply.but(content="no JSON") if "response_format" in body else reply

    start(spoil, overrides=PARSERS[:2])
    code, found = document(capsys, "mine")
    assert (code, found["verdict"]) == (0, "7 of 7 passed")
    assert rows(found)["S9"]["word"] == "skipped"
    assert rows(found)["S9"]["seen"] == "the profile leaves it out: a toy of a few dozen sentences"
    assert document(capsys, "mine", "--only", "S9")[0] == 1  # asked for by name, it runs
    start(overrides=(*PARSERS[:2], "smoke.checks=[S12, S99]"))
    assert run(["smoke", "mine"]) == 2
    assert "there is no check 'S99'" in capsys.readouterr().err


def test_a_kept_verdict_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    folder = stacks.stack_folder("mine")
    folder.mkdir(parents=True)
    (folder / verdicts.SMOKE).symlink_to("/etc/hostname")
    assert verdicts.last_smoke("mine") is None
    (folder / verdicts.SMOKE).unlink()
    verdicts.keep_smoke("mine", verdict_of([], at=1.0, since=None, vllm=None))
    assert stat.S_ISREG((folder / verdicts.SMOKE).lstat().st_mode)
