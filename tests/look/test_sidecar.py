"""The watch beside a server: its files alone in another Python, against a fake server whose counters the test sets."""

from __future__ import annotations

import ast
import dataclasses
import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemmaspec.cli.text import stack as text
from gemmaspec.core import data, records
from gemmaspec.core.profile.load import load_profile
from gemmaspec.look.sidecar import watcher as sidecar
from gemmaspec.look.sidecar.asking import post
from gemmaspec.look.sidecar.rounds import WatchLine
from gemmaspec.look.sidecar.watcher import Watcher, WatchSettings, settings_from
from gemmaspec.run.kept import verdicts
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.stack import serve
from gemmaspec.run.stack.build import build_stack
from gemmaspec.run.stack.folder import difference, write
from tests.look.test_watch import Receiver, closing, counters, running
from tests.run.test_render import compose_config, needs_compose
from tests.support.docker_support import wait_for
from tests.support.fake_engine import FakeMachine
from tests.support.fake_server import FakeServer

LIVE = ("watch.container=true", "watch.on_dead_draft=off", "watch.window_seconds=1")


def rendered(*overrides: str) -> WatchSettings:
    """The settings as a stack brings them."""
    stack = build_stack(load_profile("tiny-cpu", overrides=overrides), form="folder")
    return settings_from(stack.files[serve.SETTINGS])


def beside(fake_metrics: FakeServer, tmp_path: Path, *overrides: str) -> Watcher:
    settings = rendered(*(overrides or LIVE))
    address = f"http://127.0.0.1:{fake_metrics.server_address[1]}"
    one = sidecar.watcher(dataclasses.replace(settings, address=address), {})
    one.shared, one.faults = tmp_path, closing()
    return one


def looked(one: Watcher, fake_metrics: FakeServer, *, times: int, accepted: int = 0) -> list[WatchLine]:
    lines: list[WatchLine] = []
    for turn in range(1, times + 1):
        fake_metrics.metrics = counters(1000 * turn, accepted * turn)
        lines += one.look()
    return lines


def whats(lines: list[WatchLine]) -> list[tuple[str, str | None]]:
    return [(line.what, line.fault) for line in lines]


def test_the_settings_of_a_stack_are_the_profile_s() -> None:
    found = rendered(*LIVE, "watch.hang_seconds=7", "serve.port=8123")
    assert (found.stack, found.address) == ("tiny-cpu", "http://vllm:8123")
    assert (found.policy.on_dead_draft, found.policy.on_hang) == ("off", "report")
    assert (found.limits.window_s, found.limits.hang_s, found.limits.hang_without_power_s) == (1, 7, 7)


def test_counters_of_another_model_on_the_page_are_not_the_server_s(fake_metrics: FakeServer, tmp_path: Path) -> None:
    one = beside(fake_metrics, tmp_path)
    lines: list[WatchLine] = []
    for turn in range(1, 5):
        own = counters(1000 * turn, 0).replace(b"_total ", f'_total{{model_name="{one.settings.model}"}} '.encode())
        other = counters(1000 * turn, 3000 * turn).replace(b"_total ", b'_total{model_name="other"} ')
        fake_metrics.metrics = own + other
        lines += one.look()
    assert ("begins", "dead draft") in whats(lines)


TABLE = "speculative.k_by_requests={1: 4, 8: %d}"


@pytest.mark.parametrize(("overrides", "always"), [((), True), ((TABLE % 2,), True), ((TABLE % 0,), False)])
def test_it_knows_whether_the_server_drafts_in_every_step(overrides: tuple[str, ...], always: bool) -> None:
    found = rendered(*LIVE, *overrides)
    assert sidecar.watcher(found, {}).faults.drafts_always is found.drafts_always is always


@pytest.mark.parametrize("wish", ["restart", "off"])
def test_what_needs_a_restart_is_only_reported_with_the_reason(
    fake_metrics: FakeServer, tmp_path: Path, wish: str
) -> None:
    one = beside(fake_metrics, tmp_path, "watch.container=true", f"watch.on_dead_draft={wish}")
    (line,) = looked(one, fake_metrics, times=4)
    assert "not restarted: a container cannot restart its server" in line.reason


def test_a_server_that_looks_idle_is_asked_for_a_token_once_in_its_patience(
    fake_metrics: FakeServer, tmp_path: Path
) -> None:
    one = beside(fake_metrics, tmp_path, "watch.container=true", "watch.hang_seconds=30")
    one.faults.limits = one.settings.limits
    fake_metrics.metrics = running(0, 7)
    assert list(one.look()) == []
    one.faults._token -= 31  # so long ago
    for _ in range(3):
        assert list(one.look()) == []
        if one.question._thread:
            one.question._thread.join()
    ((path, body),) = [(path, body) for path, _, body in fake_metrics.requests if body]
    assert path == "/v1/chat/completions"
    assert (body["model"], body["max_tokens"]) == (one.settings.model, 1)


def test_a_hang_and_silence_are_told_to_the_webhook_and_their_end_too(fake_metrics: FakeServer, tmp_path: Path) -> None:
    receiver = Receiver()
    one = beside(fake_metrics, tmp_path)
    one.webhook = f"http://127.0.0.1:{receiver.server_address[1]}/secret"
    one.faults.limits = dataclasses.replace(one.faults.limits, hang_without_power_s=0)
    fake_metrics.metrics = running(1, 0)
    assert whats([line for _ in range(3) for line in one.look()]) == [("begins", "hangs")]
    fake_metrics.metrics = b"\xff not metrics {"
    assert whats([line for _ in range(5) for line in one.look()]) == [("begins", "unreachable")]
    fake_metrics.metrics = running(0, 1)
    assert whats(list(one.look()))[0] == ("ends", "unreachable")
    assert one.telling.finish(30)
    assert [(got["kind"], got["begins"]) for got in receiver.got][:3] == [
        ("hangs", True), ("unreachable", True), ("unreachable", False)
    ]  # fmt: skip
    receiver.shutdown()
    receiver.server_close()
    fake_metrics.metrics = b"\xff"
    list(one.look())
    list(one.look())
    list(one.look())
    wait_for(one.telling._wrong.qsize, seconds=30)
    lines = list(one.look())
    assert lines[0].reason == "webhook at 127.0.0.1: cannot be reached; told again in 1 s"


def test_a_server_that_still_starts_is_not_called_unreachable(fake_metrics: FakeServer, tmp_path: Path) -> None:
    one = beside(fake_metrics, tmp_path)
    fake_metrics.metrics = b"\xff"
    assert [line for _ in range(9) for line in one.look()] == []


def test_what_it_knows_can_be_read_as_any_verdict_of_watch(fake_metrics: FakeServer, tmp_path: Path) -> None:
    one = beside(fake_metrics, tmp_path, "watch.container=true")
    looked(one, fake_metrics, times=4)
    found = records.read(verdicts.Watching, tmp_path / "watch.json")
    assert found is not None
    assert list(found.active) == ["dead draft"]
    assert len(found.unknown) == 2


def test_status_shows_what_it_knows(fake_metrics: FakeServer, tmp_path: Path) -> None:
    one = beside(fake_metrics, tmp_path, "watch.container=true")
    looked(one, fake_metrics, times=4)
    machine = FakeMachine()
    machine.files["watch"] = (tmp_path / "watch.json").read_bytes()
    server = dataclasses.replace(fake_metrics.server(), watched=True)
    started = Started(engine="docker", server=server, profile="tiny-cpu")
    last = verdicts.last_verdicts(started, machine.engine("docker"))
    ((name, line),) = text.verdict_rows(last)
    assert name == "watch"
    assert line.startswith("in its container: dead draft since ")
    assert "; not judged: slower than off" in line
    assert text.verdict_document(last)["watch_container"]["watches"] is True
    assert verdicts.last_verdicts(started).beside is None
    machine.files["watch"] = b'{"at": []}'
    silent = verdicts.last_verdicts(started, machine.engine("docker"))
    ((_, line),) = text.verdict_rows(silent)
    assert "does not run, or has written nothing; next: gemmaspec up tiny-cpu --engine docker    # log: " in line
    assert line.endswith(f"docker compose -p {server.project} logs watch")
    assert text.verdict_document(silent)["watch_container"]["watches"] is False


def test_a_folder_that_cannot_be_written_is_a_line(fake_metrics: FakeServer, tmp_path: Path) -> None:
    one = beside(fake_metrics, tmp_path)
    one.shared = tmp_path / "missing"
    assert {line.what for line in looked(one, fake_metrics, times=4)} == {"begins", "failed"}


def test_a_webhook_is_told_though_its_answer_never_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as receiver, ThreadPoolExecutor() as pool:
        told = pool.submit(post, f"http://127.0.0.1:{receiver.getsockname()[1]}/x", {"fault": "hang"})
        connection, _ = receiver.accept()
        with connection:
            assert connection.recv(65536).startswith(b"POST /x ")
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
            assert told.result() is None


@pytest.mark.parametrize("url", ["http://192.0.2.1/x", "ftp://example.org", "https://u:p@example.org"])
def test_a_webhook_of_the_environment_is_checked_as_that_of_the_profile(url: str) -> None:
    with pytest.raises(ValueError, match="GEMMASPEC_WEBHOOK"):
        sidecar.watcher(rendered(*LIVE), {"GEMMASPEC_WEBHOOK": url})
    found = sidecar.watcher(rendered(*LIVE), {"GEMMASPEC_WEBHOOK": "https://example.org/x", "VLLM_API_KEY": "k"})
    assert (found.webhook, found.key) == ("https://example.org/x", "k")


def test_the_key_goes_with_each_reading(fake_metrics: FakeServer, tmp_path: Path) -> None:
    one = beside(fake_metrics, tmp_path)
    one.key = "k"
    looked(one, fake_metrics, times=1)
    assert fake_metrics.requests[-1][1]["Authorization"] == "Bearer k"


def test_its_files_run_alone_in_an_isolated_python(fake_metrics: FakeServer, tmp_path: Path) -> None:
    """With nothing of gemmaspec on the path but the stack's own folder."""
    stack = build_stack(load_profile("tiny-cpu", overrides=LIVE), form="folder")
    assert set(write(stack, tmp_path)) == set(stack.files)
    assert difference(stack, tmp_path) == ""
    folder = tmp_path / "watch"
    settings = json.loads((folder / "settings.json").read_text())
    settings["address"] = f"http://127.0.0.1:{fake_metrics.server_address[1]}"
    (folder / "settings.json").write_text(json.dumps(settings))
    fake_metrics.metrics = counters(1, 1)
    command = [sys.executable, "-IBv", str(folder), str(folder / "settings.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert lines[0]["what"] == "watches"
    assert "/run/gemmaspec-watch" in lines[1]["reason"], "it has read the counters and cannot write there"
    loaded = [line for line in said.splitlines() if "code object from" in line]
    assert any(f"{folder}/gemmaspec/look/sidecar/watcher.py" in line for line in loaded), loaded
    package = Path(data.__file__).parents[1]
    assert not any(f"{package}/" in line for line in loaded), loaded


def test_invalid_settings_end_it_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.json"
    for content in ("{", "[]", '{"schema": 2}', '{"schema": 1}'):
        file.write_text(content)
        assert sidecar.main([str(file)]) == 2
    assert capsys.readouterr().err.count("gemmaspec: cannot watch:") == 4


def test_the_python_of_an_image_may_be_3_10() -> None:
    for file in data.SIDECAR.values():
        ast.parse(file.read_text(), feature_version=(3, 10))
        assert "import StrEnum" not in file.read_text(), file
        assert "import UTC" not in file.read_text(), file


@needs_compose
@pytest.mark.parametrize("form", ["folder", "single-file"])
def test_compose_gives_it_nothing_that_it_does_not_need(form: Any, tmp_path: Path) -> None:
    loaded = load_profile("tiny-cpu", overrides=(*LIVE, "pass_env=[HF_TOKEN, VLLM_API_KEY]"))
    write(build_stack(loaded, form=form), tmp_path)
    document = compose_config(tmp_path / "compose.yaml")
    watch, server = document["services"]["watch"], document["services"]["vllm"]
    assert watch["image"] == server["image"]
    assert watch["user"] == "65534:65534"
    assert watch["cap_drop"] == ["ALL"]
    assert watch["security_opt"] == ["no-new-privileges:true"]
    assert watch.get("read_only", False) is (form == "folder")
    assert set(watch["environment"]) == {"NVIDIA_VISIBLE_DEVICES", "GEMMASPEC_WEBHOOK", "VLLM_API_KEY"}
    assert "ports" not in watch
    targets = {mount["target"]: mount.get("read_only", False) for mount in watch["volumes"]}
    assert targets == ({"/watch": True} if form == "folder" else {}) | {"/run/gemmaspec-watch": False}
    assert not [mount for mount in server["volumes"] if mount["target"] == "/run/gemmaspec-watch"]
    assert "docker.sock" not in (tmp_path / "compose.yaml").read_text()


def test_without_the_key_a_stack_has_no_trace_of_it() -> None:
    stack = build_stack(load_profile("tiny-cpu"), form="folder")
    assert not [name for name in stack.files if name.startswith("watch/")]
    assert set(yaml.safe_load(stack.files["compose.yaml"])["services"]) == {"vllm"}
