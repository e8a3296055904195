"""`gemmaspec pull` against the fake Hub: which files, from where they go on, and what is said."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gemmaspec.core.errors import Interrupted
from gemmaspec.run.engine.image_size import layer_bytes
from gemmaspec.run.models.needed import is_needed
from gemmaspec.serve.pull import Job, PullPart, _run
from tests.support import hub as hub_of
from tests.support.docker_support import wait_for
from tests.support.hub import PAIR, Fault, Hub
from tests.support.real import Done
from tests.support.warm import Harness

TOKEN = "hf_TheSecretThatMustNotShow"
WEIGHTS = os.urandom(25_000_000)  # huggingface_hub writes pieces of 10 MiB
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": {}}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"hello",
    "model.safetensors": WEIGHTS,
    "README.md": b"# a model",
    ".gitattributes": b"x",
    "pytorch_model.bin": b"duplicate" * 1000,
    "model.gguf": b"duplicate" * 1000,
    "original/consolidated.00.pth": b"duplicate" * 1000,
    "onnx/model.onnx": b"duplicate" * 1000,
    "onnx/config.json": b"{}",
}
NEEDED = {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"}
PROFILE = PAIR.format(name="pulled", port=8395)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_of.serve() as hub:
        hub.add("some/target", FILES)
        hub.add("some/draft", {**FILES, "model.safetensors": WEIGHTS[:1000]})
        yield hub


@pytest.fixture
def profile(profiles: Path) -> Path:
    file = profiles / "pulled.yaml"
    file.write_text(PROFILE % sys.executable)
    return file


class Caller:
    """Runs commands with the Hub's environment and remembers all that they said."""

    def __init__(self, harness: Harness, hub: Hub, profile: Path) -> None:
        self.harness, self.profile, self.home = harness, profile, profile.parent / "hf"
        self.env = hub.environment(self.home, HF_TOKEN=TOKEN, HF_HUB_DOWNLOAD_TIMEOUT="3")
        self.said = ""

    def __call__(self, *arguments: str, **env: str) -> Done:
        (done,) = self.harness.race(arguments, env={**self.env, **env})
        self.said += done.out + done.err
        return done

    def pull(self, *arguments: str) -> Done:
        return self("pull", str(self.profile), "--engine", "process", *arguments)

    def snapshot(self, model: str) -> dict[str, bytes]:
        (folder,) = (self.home / "hub" / f"models--{model.replace('/', '--')}" / "snapshots").iterdir()
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def call(harness: Harness, hub: Hub, profile: Path) -> Iterator[Caller]:
    caller = Caller(harness, hub, profile)
    yield caller
    assert TOKEN not in caller.said


def test_target_and_draft_come_with_the_files_that_vllm_reads_and_no_others(hub: Hub, call: Caller) -> None:
    done = call.pull("--json")
    assert done.code == 0, done.err
    parts = {part["role"]: part for part in json.loads(done.out)["parts"]}
    assert parts["target"]["revision"] == hub.repos["some/target"].refs["main"]
    assert parts["target"]["to_fetch"] == sum(len(FILES[name]) for name in NEEDED)
    assert parts["runtime"]["to_fetch"] == 0
    assert call.snapshot("some/target") == {name: FILES[name] for name in NEEDED}
    assert set(call.snapshot("some/draft")) == NEEDED
    assert not any(re.search(r"\.(bin|gguf|pth|onnx)", request.path) for request in hub.requests)
    again = call.pull()
    assert again.code == 0
    assert again.out.count("cached") == 3


def test_afterwards_up_checks_the_models_with_the_hub_gone(hub: Hub, call: Caller) -> None:
    assert call.pull().code == 0
    up = ("up", str(call.profile), "--engine", "process", "--timeout", "20")
    gone = call(*up, HF_ENDPOINT="http://127.0.0.1:9")
    assert "cannot query the Hub" not in gone.err
    assert "vllm" in gone.err  # this Python has none, which comes after the models
    offline = "from huggingface_hub import snapshot_download as s; print(s('some/target', ignore_patterns='*'))"
    done = subprocess.run(
        [sys.executable, "-c", offline],
        env={**call.env, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert hub.repos["some/target"].refs["main"] in done.stdout


def test_a_download_that_broke_off_goes_on_where_it_ended(hub: Hub, call: Caller) -> None:
    storage = f"GET /storage/{hashlib.sha256(WEIGHTS).hexdigest()}"
    hub.faults += [Fault(storage, break_after=24_000_000), Fault(storage, times=99, status=500)]
    broken = call.pull()
    assert broken.code == 4, broken.err
    assert "download of model.safetensors of some/target broke off" in broken.err
    assert "to resume" in broken.err
    assert "Traceback" not in broken.err
    (unfinished,) = (call.home / "hub" / "models--some--target" / "blobs").glob("*.incomplete")
    came = unfinished.stat().st_size
    assert came == 20 * 1024 * 1024
    hub.faults.clear()
    hub.forget()
    done = call.pull()
    assert done.code == 0, done.err
    assert f"{(len(WEIGHTS) - came) / 1e6:.2f} MB" in done.err
    assert f"bytes={came}-" in [request.range for request in hub.requests]
    assert hub.sent < len(WEIGHTS) - came + 200_000
    assert call.snapshot("some/target")["model.safetensors"] == WEIGHTS


def test_weights_that_are_not_what_the_hub_lists_are_not_kept(hub: Hub, call: Caller) -> None:
    blobs = call.home / "hub" / "models--some--target" / "blobs"
    blobs.mkdir(parents=True)
    name = f"{hashlib.sha256(WEIGHTS).hexdigest()}.incomplete"
    (blobs / name).write_bytes(bytes(500_000))
    done = call.pull()
    assert done.code == 4
    assert "differs from the Hub's listing" in done.err
    assert not (blobs / name).exists()
    assert call.pull().code == 0


@pytest.mark.parametrize("name", ["model.safetensors", "chat_template.jinja"])
def test_a_file_that_was_cut_short_in_the_cache_is_fetched_again(hub: Hub, call: Caller, name: str) -> None:
    assert call.pull().code == 0
    (folder,) = (call.home / "hub" / "models--some--target" / "snapshots").iterdir()
    os.truncate(folder / name, 3)
    done = call.pull()
    assert done.code == 0, done.err
    assert "new" in done.out
    assert call.snapshot("some/target")[name] == FILES[name]
    assert call.pull().out.count("cached") == 3


@pytest.mark.parametrize("sha256", ["../../../../outside", "/tmp/outside", "", "A" * 64])
def test_a_hash_that_is_none_names_no_file(hub: Hub, call: Caller, sha256: str) -> None:
    def lying(file: dict[str, Any]) -> dict[str, Any]:
        return {**file, "lfs": {**file["lfs"], "sha256": sha256}} if "lfs" in file else file

    hub.listed = lying
    done = call.pull()
    assert done.code == 4, done.err
    assert re.search("lists no sha256 for (model.safetensors|tokenizer.json)", done.err)
    assert not (call.home / "hub").exists()
    assert not list(call.profile.parent.rglob("outside*"))


def test_a_hub_that_sends_more_than_it_lists_does_not_fill_the_disk(hub: Hub, call: Caller) -> None:
    hub.listed = lambda file: {**file, "size": 2_000_000} if file.get("size", 0) > 10**7 else file
    done = call.pull()
    assert done.code == 4
    assert "target.model: the Hub sends more than the listed 2000000 bytes of model.safetensors" in done.err
    assert all(file.stat().st_size <= 2_000_000 for file in (call.home / "hub").rglob("*.incomplete"))


def test_a_gated_model_says_what_to_accept_where_before_anything_is_fetched(hub: Hub, call: Caller) -> None:
    hub.add("some/draft", FILES, gated="manual")
    done = call.pull()
    assert done.code == 4
    assert "draft.model: some/draft is gated, and this token has no access yet" in done.err
    assert f"accept the terms at {hub.url}/some/draft" in done.err
    assert not (call.home / "hub" / "models--some--target" / "blobs").exists()
    hub.repos["some/draft"].readers = frozenset({TOKEN})
    assert call.pull().code == 0
    elsewhere = [request for request in hub.requests if request.path.startswith("/storage/")]
    assert elsewhere
    assert not any(request.authorized for request in elsewhere)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"private": True}, "the model some/draft does not exist on the Hub, or it is private"),
        ({"refs": {"other": "0" * 40}}, "some/draft has no revision"),
    ],
)
def test_a_model_that_cannot_be_had_is_told(hub: Hub, call: Caller, about: dict[str, Any], said: str) -> None:
    for key, value in about.items():
        setattr(hub.repos["some/draft"], key, value)
    done = call.pull()
    assert done.code == 4
    assert said in done.err


def test_a_token_that_the_hub_refuses_is_told_and_not_shown(hub: Hub, call: Caller) -> None:
    hub.faults.append(Fault("auth-check", times=9, status=401))
    done = call.pull("--json")
    assert done.code == 4
    assert "the Hub rejects this token for some/target (401)" in done.err


def test_a_model_without_safetensors_is_told(hub: Hub, call: Caller) -> None:
    hub.add("some/draft", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    done = call.pull()
    assert done.code == 4
    assert "some/draft has no .safetensors" in done.err


def test_a_hub_that_does_not_answer_is_told(call: Caller) -> None:
    call.env["HF_ENDPOINT"] = "http://127.0.0.1:9"
    done = call.pull()
    assert done.code == 4
    assert "cannot query the Hub about some/target" in done.err
    assert "Traceback" not in done.err


def test_the_disk_is_checked_before_anything_is_fetched(hub: Hub, call: Caller) -> None:
    hub.add("some/draft", {"config.json": b"{}", "model.safetensors": hub_of.Zeros(b"", 10**15)})
    done = call.pull()
    assert done.code == 4
    assert re.search(r"has [\d.]+ GB free, and 1000000\.0 GB must be downloaded", done.err)
    assert not (call.home / "hub").exists() or not list((call.home / "hub").glob("*/blobs/*"))


def test_no_other_command_shows_the_token_either(hub: Hub, call: Caller) -> None:
    hub.add("some/draft", FILES, gated="auto")
    for command in ("lock", "doctor", "up", "fit"):
        call(command, str(call.profile), *(() if command == "fit" else ("--engine", "process")))
        call(command, str(call.profile), "--json")
    assert "gated" in call.said


def test_a_token_that_was_stored_by_a_login_is_hidden_too(hub: Hub, call: Caller) -> None:
    call.home.mkdir()
    (call.home / "token").write_text("hf_StoredByALogin\n")
    call.env["HF_TOKEN"] = ""
    done = call("pull", "hf_StoredByALogin")
    assert done.code == 2
    assert "unknown profile '***'" in done.err


def test_a_bug_prints_a_traceback_without_the_token(call: Caller) -> None:
    broken = (
        "import os, sys; from gemmaspec.cli.app import run; from gemmaspec.run.models import access\n"
        "def fail(*_, **__): raise ZeroDivisionError(f'Authorization: Bearer {os.environ[\"HF_TOKEN\"]}')\n"
        "access.check_access = fail\n"
        f"sys.exit(run(['pull', {str(call.profile)!r}, '--engine', 'process']))"
    )
    done = subprocess.run([sys.executable, "-c", broken], env=call.env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "This is a bug in gemmaspec" in done.stderr
    assert "Bearer ***" in done.stderr
    call.said += done.stdout + done.stderr


def test_ctrl_c_ends_it_soon_and_what_came_is_kept(hub: Hub, call: Caller) -> None:
    hub.bytes_per_second = 8_000_000
    command = [sys.executable, "-m", "gemmaspec", "pull", str(call.profile), "--engine", "process"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=call.env)
    blobs = call.home / "hub" / "models--some--target" / "blobs"
    wait_for(lambda: any(file.stat().st_size > 100_000 for file in blobs.glob("*.incomplete")), seconds=120)
    process.send_signal(2)
    began = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert time.monotonic() - began < 50
    assert [file.stat().st_size > 0 for file in blobs.glob("*.incomplete")] == [True]
    call.said += err


def test_ctrl_c_while_downloads_are_begun_ends_those_that_run() -> None:
    begun, ended = threading.Event(), []

    def run(tell: Callable[[int], None]) -> None:
        begun.set()
        try:
            for _ in range(1000):
                tell(1)
                time.sleep(0.01)
        except Interrupted:
            ended.append("early")

    class Interrupting:
        """A job; Ctrl-C is pressed in the moment in which it is begun."""

        part = PullPart(role="draft", name="some/model")

        @property
        def run(self) -> Callable[[Callable[[int], None]], None]:
            begun.wait()
            raise KeyboardInterrupt

    first: Any = Job(part=PullPart(role="target", name="some/model"), run=run)
    with pytest.raises(KeyboardInterrupt):
        _run([first, Interrupting()], Mock())
    assert ended == ["early"]


def test_on_a_terminal_there_are_bars_and_no_token(call: Caller) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gemmaspec", "pull", str(call.profile), "--engine", "process"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env={**call.env, "TERM": "xterm"}) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:
            pass  # the other end is closed
    os.close(ours)
    text = shown.decode("utf-8", "replace")
    assert process.returncode == 0, text
    assert "target some/target" in text
    assert "target: here" in text
    call.said += text


def test_locked_revisions_are_fetched_and_latest_ignores_them(hub: Hub, call: Caller) -> None:
    locked = hub.repos["some/target"].refs["main"]
    draft = hub.repos["some/draft"].refs["main"]
    zeros = f"sha256:{'0' * 64}"
    (call.profile.parent / "pulled.lock").write_text(
        f"schema: 1\nprofile: pulled\nengine: process\nplan: {zeros}\n"
        f"target: {{model: some/target, revision: {locked}}}\ndraft: {{model: some/other, revision: {draft}}}\n"
        "versions: {vllm: 0.32.0, torch: 2.13.0, transformers: 5.19.0}\n"
    )
    newer = hub.add("some/target", {**FILES, "config.json": b'{"newer": true}'})
    done = call.pull("--json")
    assert done.code == 0, done.err
    parts = {part["role"]: part["revision"] for part in json.loads(done.out)["parts"]}
    assert parts == {"runtime": None, "target": locked, "draft": draft}
    assert "draft: the lock names another model than the profile" in done.err
    assert f"to run that: gemmaspec up {call.profile} --locked" in done.err
    done = call.pull("--latest", "--json")
    assert {part["revision"] for part in json.loads(done.out)["parts"]} == {None, newer, draft}


ODD_NAMES = ["a\\..\\b.json", "\x1b[2J.json", "a\nb.json", "a\0.json", f"{'x' * 300}.json"]


def test_names_that_no_file_should_have_are_left_out(hub: Hub, call: Caller) -> None:
    named = ["ü ö.json", "..json", "-rf.json"]
    hub.add("some/draft", {**FILES, **dict.fromkeys([*ODD_NAMES, "../x.json", "/x.json", *named], b"{}")})
    done = call.pull()
    assert done.code == 0, done.err
    assert set(call.snapshot("some/draft")) == NEEDED | set(named)


@pytest.mark.parametrize(
    "name", [*sorted(NEEDED), "model-00001-of-00002.safetensors", "tokenizer.model", "merges.txt", "modeling.py"]
)
def test_what_vllm_reads(name: str) -> None:
    assert is_needed(name)


@pytest.mark.parametrize(
    "name",
    [*sorted(set(FILES) - NEEDED), "consolidated.safetensors", "x/model.safetensors", "../config.json", *ODD_NAMES],
)
def test_what_vllm_does_not_read(name: str) -> None:
    assert not is_needed(name)


MANIFESTS = [
    {
        "Descriptor": {"platform": {"architecture": arch, "os": "linux"}},
        "SchemaV2Manifest": {"layers": [{"size": size}, {"size": 5}]},
    }
    for arch, size in (("amd64", 100), ("arm64", 200))
]


@pytest.mark.parametrize(
    ("found", "size"),
    [
        (MANIFESTS, 205),
        (MANIFESTS[0], 105),
        ({"Descriptor": {}, "OCIManifest": {"layers": [{"size": 7}]}}, 7),
        ([], None),
        ({"Descriptor": None}, None),
        ([{"SchemaV2Manifest": {"layers": 3}}], None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_the_size_of_an_image_is_read_from_its_manifest(found: Any, size: int | None) -> None:
    assert layer_bytes(found, "arm64") == size
