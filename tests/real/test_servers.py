"""The main job, for real: vLLM in a container and in a managed environment, with the tiny pair."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gemmaspec.core.launcher.probe import QUESTION
from gemmaspec.run.engine.record import MARKER
from tests.support import attested_server, heads, kv_cache, pinned_server, real, sampled, watch_beside, watch_on_host
from tests.support.real import H1, H2, H3A, PORT, PROFILE, SHIPPED, Done, gemmaspec, patches, up
from tests.support.watched import Watching

OVERLAID = "vllm/v1/worker/utils.py"
AS_PROCESS, IN_DOCKER = (pytest.mark.only_engine(name) for name in ("process", "docker"))
APART, ALONE, OLDEST = (pytest.mark.xdist_group(name) for name in ("apart", "alone", "oldest"))
"""Have servers of their own, and may run on other workers than the tests that share one."""
SETTINGS = {"process": watch_on_host.settings, "docker": watch_beside.settings}
"""What the profile of the shared server says besides, on each engine: a draft that can be spoiled, and a quick watch."""


def png(width: int, height: int) -> str:
    """A small grey picture as a data URL."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + b"\x80" * (3 * width) for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def chat(content: Any, **more: Any) -> dict[str, Any]:
    """One greedy chat request to the running server."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 48,
        **more,
    }
    answer = httpx.post(f"http://127.0.0.1:{PORT}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def text_of(answer: dict[str, Any]) -> str:
    text = answer["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


def states(report: dict[str, Any]) -> dict[str, str]:
    return {patch["patch"]: patch["state"] for patch in report["patches"]}


def report() -> dict[str, Any]:
    """What the running server's launcher reports, without what its processes attest."""
    found: dict[str, Any] = gemmaspec("status", PROFILE, "--json").json["stacks"][0]["report"]
    return {name: value for name, value in found.items() if name != "attested"}


def up_command(engine: str) -> list[str]:
    return [sys.executable, "-m", "gemmaspec", "up", PROFILE, "--engine", engine, "--set", f"serve.port={PORT}"]


@AS_PROCESS
def test_vllm_dies_of_a_hole_and_up_says_which(engine: str) -> None:
    """Of one that its first request finds: it has loaded its models, and is healthy until then."""
    done = up(engine, *patches(H1, H2))
    assert done.code == 6, done.err
    assert "first request" in done.err
    assert H3A in done.err
    assert gemmaspec("status", PROFILE).code == 1


def test_a_killed_launcher_leaves_vllm_untouched(engine: str) -> None:
    before = package_digest() if engine == "process" else None
    killed = real.kill_the_launcher(up_command(engine), engine)
    assert killed.code == 6, killed.err
    assert before is None or package_digest() == before


def test_two_ups_share_one_start_that_patches_serves_drafts_and_answers(engine: str) -> None:
    """The start after the killed one."""
    real.write_profile(SETTINGS[engine]())
    both = [real.begin([*up_command(engine), "--json"]) for _ in range(2)]
    ended = [Done(process.returncode, *said) for process in both for said in [process.communicate(timeout=1500)]]
    assert [done.code for done in ended] == [0, 0], ended
    assert sum("is starting it; waiting" in done.err for done in ended) == 1, ended
    for done in ended:
        answer = done.json["answer"]
        assert answer["draft_tokens"] > 0
        assert answer["accepted_tokens"] > 0
        assert answer["acceptance_length"] == pytest.approx(1 + answer["accepted_tokens"] / answer["drafts"])
        assert states(done.json["report"]) == dict.fromkeys(SHIPPED, "applies")
        assert "warning" not in done.err
        assert "not kept" not in done.err, done.err
        assert "no download" not in done.err
        assert "installing" not in done.err


def test_fit_says_what_the_running_server_logged_of_its_cache(engine: str) -> None:
    kv_cache.compare([])


def test_status_shows_what_the_running_server_reports(engine: str) -> None:
    done = gemmaspec("status", PROFILE, "--json")
    assert done.code == 0, done.err
    (stack,) = done.json["stacks"]
    assert stack["engine"] == engine
    assert stack["report"]["vllm"]["version"].startswith("0.32.0")
    assert all(len(file["sha256_after"]) == 64 for patch in stack["report"]["patches"] for file in patch["files"])
    assert stack["speculation"]["drafted"] > 0
    assert "acceptance length" in gemmaspec("status", PROFILE).out
    assert "V1 LLM engine (v0.32.0)" in gemmaspec("logs", PROFILE).out, "vLLM's own word"


def test_every_process_attests_before_the_server_is_ready(engine: str) -> None:
    attested_server.says_what_every_process_runs()


def test_top_shows_what_the_running_server_drafts(engine: str) -> None:
    over = threading.Event()

    def ask_again_and_again() -> None:
        while not over.is_set():
            chat("Explain quantum entanglement to the quick brown fox.")

    with ThreadPoolExecutor() as pool:
        asking = pool.submit(ask_again_and_again)
        try:
            stack = gemmaspec("top", PROFILE, "--once", "--json", "--interval", "3").json["stacks"][0]
        finally:
            over.set()
        asking.result()
    assert stack["problem"] is None
    assert stack["now"]["k"] == 4.0
    assert stack["now"]["acceptance_length"] > 1
    assert len(stack["now"]["by_position"]) == 4
    assert set(stack["patches"]) >= {H1, H2}


def test_text_and_image_requests_are_answered_together(engine: str) -> None:
    picture = [
        {"type": "image_url", "image_url": {"url": png(64, 48)}},
        {"type": "text", "text": "What is this?"},
    ]
    assert text_of(chat(picture))
    assert text_of(chat("And what is this?"))
    assert text_of(chat(picture))


@AS_PROCESS
def test_smoke_asks_the_running_server_what_a_tiny_model_can_show(engine: str) -> None:
    """The prefix cache, an image beside a draft, refused parameters, the model's name, and drafting."""
    checks = [word for id_ in ("S12", "S13", "S14", "S16", "S18", "S20") for word in ("--only", id_)]
    done = gemmaspec("smoke", PROFILE, "--json", *checks)
    assert done.code == 0, done.err
    words = {row["id"]: row["word"] for row in done.json["rows"]}
    assert words == {"S12": "pass", "S13": "pass", "S14": "fail", "S16": "pass", "S18": "pass", "S20": "pass"}
    assert done.json["warned"] == ["S14"], "vLLM 0.32.0 takes neither min_p nor logit_bias beside a draft"


def test_up_twice_is_harmless(engine: str) -> None:
    before = report()
    done = up(engine)
    assert done.code == 0, done.err
    assert "already running" in done.err
    assert report() == before


def test_a_real_server_is_compared_with_its_report_and_a_changed_file_is_named(engine: str) -> None:
    whole = gemmaspec("patch", "verify", "--server", PROFILE, "--json")
    assert whole.code == 0, whole.err
    assert {row["patch"]: row["state"] for row in whole.json["results"]} == dict.fromkeys(SHIPPED, "applied")
    status = gemmaspec("status", PROFILE, "--json")
    assert status.code == 0
    (stack,) = status.json["stacks"]
    assert stack["changed"] == []
    files = [file for patch in stack["report"]["patches"] for file in patch["files"]]
    assert all(file["pristine"] for file in files)

    spoil(engine)
    changed = gemmaspec("patch", "verify", "--server", PROFILE, "--json")
    assert (changed.code, changed.json["ok"]) == (5, False)
    states = {row["patch"]: row["state"] for row in changed.json["results"]}
    assert states == {**dict.fromkeys(SHIPPED, "applied"), H2: "conflict"}
    told = gemmaspec("status", PROFILE)
    assert told.code == 5
    assert f"CHANGED   {OVERLAID} (overlay)" in told.out

    plan = real.STATE / "stacks" / PROFILE / "plan.json"
    kept = plan.read_text()
    plan.write_text(kept.replace('"required": true', '"required": false', 1))
    assert "changed after it was rendered" in gemmaspec("status", PROFILE).out
    plan.write_text(kept)


@AS_PROCESS
def test_replies_are_whole_however_they_are_sampled(engine: str) -> None:
    sampled.replies_are_whole()


@IN_DOCKER
def test_the_watch_in_its_container_names_a_dead_draft_and_says_what_it_cannot_do(engine: str) -> None:
    assert watch_beside.runs_as("vllm") == {"user": "1234:1234", "read_only": True, "without": ["ALL"]}
    watch_beside.watches_and_has_nothing_that_it_does_not_need()
    watch_beside.comes_back_after_it_was_killed()
    watch_beside.names_a_dead_draft()
    watch_beside.names_a_hang()


@IN_DOCKER
def test_it_is_gone_back_to_after_a_start_that_fails_and_patches_again(engine: str) -> None:
    before = report()["started"]
    with pinned_server.own_profile() as profile:
        lock = pinned_server.is_the_known_good_one_and_locked()
        pinned_server.fails_locked_with_another_flag(profile)
        pinned_server.goes_back_without_a_network(lock)
        pinned_server.refuses_another_plan_and_runs_on(profile, lock)
    assert report()["started"] != before


@pytest.fixture(scope="module")
def watch() -> Iterator[Watching]:
    """The watch of the server as a process; all tests that use it share it, in this order."""
    watching = watch_on_host.watching()
    yield watching
    watching.end()


@AS_PROCESS
def test_a_draft_that_dies_is_switched_off_and_the_text_is_the_targets_own_before_and_after(
    engine: str, watch: Watching
) -> None:
    prompts = ["Tell me about drafts.", "Count from one to ten.", "Why is the sky blue?"]
    greedy, drafted = [text_of(chat(prompt)) for prompt in prompts], sampled.answers()
    before = report()["started"]
    watch_on_host.switches_a_dead_draft_off_and_no_request_is_lost(watch)
    assert report()["started"] != before
    assert set(states(report()).values()) == {"applies"}
    assert [text_of(chat(prompt)) for prompt in prompts] == greedy
    sampled.same_distribution(drafted, sampled.answers())


@AS_PROCESS
def test_an_engine_that_hangs_between_two_requests_is_named(engine: str, watch: Watching) -> None:
    watch_on_host.names_an_engine_that_hangs_between_two_requests(watch)


@AS_PROCESS
def test_an_engine_that_hangs_under_load_is_named_and_loses_nothing(engine: str, watch: Watching) -> None:
    watch_on_host.names_an_engine_that_hangs_under_load_and_loses_nothing(watch)


def test_logs_are_those_of_the_last_start(engine: str) -> None:
    lines = gemmaspec("logs", PROFILE).out.splitlines()
    assert len([line for line in lines if "patching vllm" in line]) == 1
    assert len(gemmaspec("logs", PROFILE, "--tail", "3").out.splitlines()) == 3


@IN_DOCKER
def test_the_watch_in_its_container_names_a_server_that_is_stopped(engine: str) -> None:
    watch_beside.names_a_server_that_is_stopped()


@AS_PROCESS
def test_an_engine_that_is_killed_under_load_is_named(engine: str, watch: Watching) -> None:
    watch_on_host.names_an_engine_that_is_killed_under_load(watch)
    watch.end()
    watch_on_host.show_noticed()


def test_down_leaves_nothing_running(engine: str) -> None:
    real.write_profile()
    assert gemmaspec("down", PROFILE).code == 0
    assert gemmaspec("status", PROFILE).code == 1
    assert "was not running" in gemmaspec("down", PROFILE).err
    stopped = gemmaspec("restart", PROFILE, "--dry-run")
    assert (stopped.code, f"{PROFILE} is not running" in stopped.err) == (1, True)
    assert not left_running(engine)


@APART
def test_ctrl_c_during_the_start_leaves_no_orphan(engine: str) -> None:
    done = real.interrupt_when(up_command(engine), "importing")
    assert done.code == 130, done.err
    assert gemmaspec("status", PROFILE).code == 1
    assert not left_running(engine)


@APART
def test_a_timeout_names_the_phase_and_stops_the_server(engine: str) -> None:
    done = up(engine, "--timeout", "6")
    assert done.code == 7, done.err
    assert re.search("was not ready within 6 s: still (patching|importing), ", done.err), done.err
    assert not left_running(engine)


@APART
def test_a_conflicting_patch_stops_the_start_before_vllm_is_imported(engine: str, tmp_path: Path) -> None:
    write_conflicting_patch(tmp_path / "does-not-fit")
    done = up(engine, *patches(H1, "does-not-fit"), env={"GEMMASPEC_PATCHES": str(tmp_path)})
    assert done.code == 5, done.err
    assert "does-not-fit" in done.err
    assert "expected" in done.err
    assert "importing" not in done.err


@ALONE
@pytest.mark.real_docker
@real.NO_DOCKER
def test_a_single_file_runs_with_docker_compose_alone(tmp_path: Path) -> None:
    """What `render --single-file` wrote is copied elsewhere and started by Compose, with gemmaspec out of reach.

    Its draft is its own text (ngram), and no second model.
    """
    gemmaspec("down", PROFILE)  # the port is the run's
    real.tiny_pair()
    real.write_profile(extends="tiny-cpu-ngram")
    rendered = gemmaspec(
        "render", PROFILE, "--single-file", "--out", str(tmp_path / "out"), "--set", f"serve.port={PORT}"
    )
    assert rendered.code == 0, rendered.err
    (tmp_path / "pasted.yaml").write_text((tmp_path / "out" / "compose.yaml").read_text())
    compose = ["docker", "compose", "-p", f"{real.PROJECT}-pasted", "-f", str(tmp_path / "pasted.yaml")]
    bare = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "GEMMASPEC_STATE": str(real.STATE)}
    try:
        started = subprocess.run([*compose, "up", "-d", "--wait", "--wait-timeout", "600"], check=False, env=bare)
        logs = subprocess.run([*compose, "logs", "--tail", "60"], capture_output=True, text=True, check=False, env=bare)
        assert started.returncode == 0, logs.stdout
        before = heads.counters()
        text = text_of(chat(QUESTION))
        added = heads.counters().since(before)
        assert added
        counted = {"drafts": added.drafts, "draft_tokens": added.drafted, "accepted_tokens": added.accepted}
        heads.drafts_and_the_target_accepts({"text": text, **counted}, k=4)
    finally:
        real.write_profile()
        subprocess.run([*compose, "down", "-v", "-t", "5"], check=True, env=bare)


@OLDEST
@pytest.mark.real_process
def test_before_0_21_the_plan_passes_the_multimodal_guard() -> None:
    """On vLLM 0.20.2, where the patch's probe finds that it raises; its fix for speculation on a CPU is in the runtime."""
    done = up("process", "--set", "runtime.vllm=0.20.2")
    assert done.code == 0, done.err
    assert done.json["answer"]["draft_tokens"] > 0
    assert done.json["report"]["vllm"]["version"].startswith("0.20.2")
    assert gemmaspec("down", PROFILE).code == 0


def spoil(engine: str) -> None:
    """Append a line to a patched file of the overlay."""
    if engine == "process":
        file = real.STATE / "stacks" / PROFILE / "run/overlay" / OVERLAID
        file.write_text(file.read_text() + "\n# mine\n")
        return
    watch_beside.in_the_server(f"echo '# mine' >> /run/gemmaspec/overlay/{OVERLAID}")


def write_conflicting_patch(folder: Path) -> None:
    """A patch for lines that no vLLM has."""
    folder.mkdir()
    (folder / "any.diff").write_text(
        "--- a/vllm/v1/core/kv_cache_utils.py\n+++ b/vllm/v1/core/kv_cache_utils.py\n"
        "@@ -1,1 +1,1 @@\n-    except NeverRaised:\n+    except AlwaysRaised:\n"
    )
    (folder / "patch.yaml").write_text((Path(__file__).parent.parent / "data" / "does-not-fit.yaml").read_text())


def left_running(engine: str) -> list[str]:
    """What is still there of a server that the suite started: its processes here, its containers."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if MARKER in environment and environment.get("GEMMASPEC_STATE") == str(real.STATE):
                found.append(f"{process.pid} {process.name()}")
    if engine == "docker":
        found += real.containers()
    return found


def package_digest() -> str:
    """sha256 over every Python file of the runtime's vLLM."""
    package = real.cpu_site() / "vllm"
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(str(file.relative_to(package)).encode() + file.read_bytes())
    return digest.hexdigest()
