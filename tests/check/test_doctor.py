"""The doctor: pure judgements over readings, and the command with a fake nvidia-smi, as there is no GPU here."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.check.doctor import machine
from gemmaspec.check.doctor.driver import driver_row
from gemmaspec.check.doctor.gpu import Gpus, capability_row, gpu_row, lacks
from gemmaspec.check.doctor.machine import (
    Clock,
    clock_row,
    container_shm_row,
    disk_row,
    open_files_row,
    shm_row,
    size_bytes,
)
from gemmaspec.check.doctor.result import CheckResult
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.releases.facts import facts_for
from gemmaspec.run.engine.process import ProcessEngine
from gemmaspec.run.machine.readings import disk_of
from gemmaspec.serve import doctor_machine
from gemmaspec.serve.doctor_machine import together
from gemmaspec.serve.doctor_subject import DoctorSubject
from tests.support import hub as hub_of
from tests.support.warm import Harness

SUMMARY = """\
Sat Nov 21 18:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |
| N/A   42C    P8              5W /  N/A  | Not Supported          |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
"""
SPARK = Gpus(names=("NVIDIA GB10",), driver="580.95.05", cuda="13.0", capabilities=("12.1",))
H200 = Gpus(names=("NVIDIA H200",), driver="570.86.15", cuda="12.8", capabilities=("9.0",))
REQUIRE = (
    "cuda>=12.9 brand=unknown,driver>=535,driver<536 brand=tesla,driver>=535,driver<536 "
    "brand=tesla,driver>=570,driver<571"
)
"""As NVIDIA's CUDA images carry it: ways separated by spaces, conditions of one way by commas."""


def test_a_driver_without_a_profile_is_only_shown() -> None:
    row = driver_row(SPARK, require=None, cuda="", where="")
    assert (row.state, row.message) == ("ok", "driver 580.95.05, which runs CUDA up to 13.0")


@pytest.mark.parametrize(
    ("gpus", "require", "cuda", "state", "said"),
    [
        (SPARK, "cuda>=13.0", "13.0.2", "ok", "the image has CUDA 13.0.2"),
        (SPARK, None, "13.1.0", "warning", "a newer minor release"),
        (SPARK, None, "14.0.0", "failed", "the image has CUDA 14.0.0"),
        (SPARK, "cuda>=13.2", "13.2.0", "failed", "the image requires cuda>=13.2"),
        (SPARK, None, None, "ok", "does not declare its CUDA"),
        (SPARK, None, "a b", "ok", "does not declare its CUDA"),
        (H200, REQUIRE, "12.9.1", "warning", "a newer minor release"),
        (H200, REQUIRE.replace("driver>=570,driver<571", "driver>=580"), "12.9.1", "failed", "requires cuda>=12.9"),
        (H200, "cuda>=13.0 nonsense driver=abc", "13.0.2", "failed", "requires cuda>=13.0"),
    ],
)
def test_the_driver_against_the_image_s_cuda(
    gpus: Gpus, require: str | None, cuda: str | None, state: str, said: str
) -> None:
    row = driver_row(gpus, require=require, cuda=cuda, where="the image")
    assert row.state == state
    assert said in row.message
    assert (row.fix is None) == (state == "ok")


@given(st.text(max_size=200) | st.just("cuda>=" + "9" * 5000), st.text(max_size=20) | st.just("1" * 5000))
def test_no_condition_of_an_image_is_a_crash(require: str, cuda: str) -> None:
    assert driver_row(H200, require=require, cuda=cuda, where="the image").state in ("ok", "warning", "failed")


def test_a_driver_that_does_not_name_its_cuda_is_a_warning() -> None:
    unknown = Gpus(names=("A",), driver="1.0", cuda=None, capabilities=())
    assert driver_row(unknown, require="cuda>=13.0", cuda="13.0", where="the image").state == "warning"


@pytest.mark.parametrize(
    ("capability", "vllm", "said"),
    [
        ("12.1", "0.32.0", ["no FlashAttention or FlashInfer for Gemma 4: Triton"]),
        (
            "12.1",
            "0.23.0",
            ["no FlashAttention or FlashInfer for Gemma 4: Triton attention", "no NVFP4 kernels made for 12.x"],
        ),
        ("12.1", "0.24.0", ["no FlashAttention"]),
        ("9.0", "0.32.0", ["no FP4 units"]),
        ("10.0", "0.28.0", ["FLASHINFER for text, Triton attention where images are served"]),
        ("10.0", "0.32.0", []),
        ("10.0", "0.23.0", ["no FlashAttention or FlashInfer for Gemma 4: Triton attention"]),
        (None, "0.32.0", []),
    ],
)
def test_what_a_gpu_lacks_follows_the_facts_of_the_release(capability: str | None, vllm: str, said: list[str]) -> None:
    facts = facts_for(vllm)
    assert facts
    found = list(lacks(capability, facts))
    assert len(found) == len(said), found
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))


def test_nothing_is_said_of_a_release_that_is_not_known() -> None:
    assert capability_row("12.1", None) is None


@pytest.mark.parametrize(
    ("gpus", "wanted", "capability", "state"),
    [
        (None, True, "12.1", "failed"),
        (None, False, None, "ok"),
        (SPARK, True, "12.1", "ok"),
        (H200, True, "12.1", "warning"),
        (H200, True, None, "ok"),
    ],
)
def test_the_gpu_that_is_there_against_the_machine(
    gpus: Gpus | None, wanted: bool, capability: str | None, state: str
) -> None:
    assert gpu_row(gpus, wanted=wanted, capability=capability).state == state


NOON = 1795262400.0  # 2026-11-21 12:00 UTC


@pytest.mark.parametrize(
    ("clock", "state", "said"),
    [
        (Clock(now=NOON, step=0.0, skew=1.5, against="https://hub"), "ok", "within 60 s of https://hub"),
        (
            Clock(now=NOON, step=0.0, skew=None, against="HF_HUB_OFFLINE is set"),
            "ok",
            "not compared with another clock",
        ),
        (Clock(now=NOON, step=0.0, skew=-3600.0, against="https://hub"), "warning", "3600 s behind https://hub"),
        (Clock(now=NOON, step=0.0, skew=90.0, against="https://hub"), "warning", "90 s ahead of"),
        (Clock(now=NOON, step=40.0, skew=0.0, against="https://hub"), "warning", "was changed by +40 s"),
        (Clock(now=0.0, step=0.0, skew=None, against="x"), "warning", "it cannot be 1970-01-01"),
    ],
)
def test_clocks(clock: Clock, state: str, said: str) -> None:
    row = clock_row(clock)
    assert row.state == state
    assert said in row.message


@pytest.mark.parametrize(("hard", "state"), [(None, "ok"), (65535, "ok"), (1024, "warning")])
def test_open_files(hard: int | None, state: str) -> None:
    assert open_files_row(hard).state == state


@pytest.mark.parametrize(
    ("size", "ipc", "state"),
    [(None, "private", "failed"), ("64mb", "private", "failed"), ("1gb", "private", "ok"), (None, "host", "ok")],
)
def test_a_container_s_shared_memory(size: str | None, ipc: str, state: str) -> None:
    assert container_shm_row(size, ipc).state == state


@pytest.mark.parametrize(("text", "size"), [("32gb", 32 * 2**30), ("64m", 64 * 2**20), ("10B", 10), ("1KB", 1024)])
def test_sizes_as_profiles_have_them(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize(("free", "state"), [(None, "skipped"), (2**20, "failed"), (2**30, "ok")])
def test_the_machine_s_shared_memory(free: int | None, state: str) -> None:
    assert shm_row(free).state == state


@pytest.mark.parametrize(
    ("free", "needed", "state", "said"),
    [
        (None, None, "skipped", "is not visible"),
        (50 * machine.GB, None, "ok", "50.0 GB free"),
        (50 * machine.GB, 0, "ok", "nothing to fetch"),
        (50 * machine.GB, 20 * machine.GB, "ok", "20.0 GB to fetch"),
        (5 * machine.GB, 20 * machine.GB, "failed", "5.0 GB free, 20.0 GB must still be fetched"),
        (2**20, None, "failed", "a start needs 1 GiB"),
    ],
)
def test_disks(free: int | None, needed: int | None, state: str, said: str) -> None:
    row = disk_row("disk", "/cache", free, needed)
    assert row.state == state
    assert said in row.message
    assert (row.fix == "df -h /cache") == (state == "failed")


# The command itself.


class Late(BaseHTTPRequestHandler):
    """A server whose clock is an hour ahead."""

    def do_HEAD(self) -> None:
        self.send_response_only(200)
        import email.utils
        import time

        self.send_header("Date", email.utils.formatdate(time.time() + 3600, usegmt=True))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def late() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Late)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


Told = tuple[int, dict[str, dict[str, Any]], str]


@pytest.fixture
def doctor(harness: Harness) -> Callable[..., Told]:
    """Exit code, rows by name, and stderr of `gemmaspec doctor --json`, in a process of its own."""

    def told(*arguments: str, **env: str) -> Told:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": "/nonexistent-cache", **env}
        (done,) = harness.race(["doctor", "--json", *arguments], env=environment)
        assert "Traceback" not in done.err
        return done.code, {row["name"]: row for row in done.json["rows"]}, done.err

    return told


def without_docker(folder: Path) -> dict[str, str]:
    """A PATH without docker, and a daemon's address where none is."""
    return {"PATH": str(folder), "DOCKER_HOST": f"unix://{folder}/none.sock"}


def test_the_machine_alone_without_docker(doctor: Callable[..., Told], tmp_path: Path) -> None:
    code, rows, _ = doctor(**without_docker(tmp_path))
    assert code == 0
    assert rows["docker client"]["state"] == "warning"
    assert "`up` will use the process engine" in rows["docker daemon"]["message"]
    assert rows["gpu"]["message"] == "no GPU, and none is needed"
    assert rows["clock"]["state"] == "ok"
    assert "HF_HUB_OFFLINE is set" in rows["clock"]["message"]


def test_people_read_what_fails_and_how_many_rows_are_in_order(harness: Harness, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": "/nonexistent-cache", **without_docker(tmp_path)}
    short, whole, document = (
        harness.race(["doctor", *more], env=environment)[0] for more in ([], ["--all"], ["--json"])
    )
    states = Counter(row["state"] for row in json.loads(document.out)["rows"])
    lines = short.out.splitlines()
    assert lines[0].startswith("engine process: ")
    assert lines[-1].startswith(f"{states['ok']} ok, {states['warning']} warning")
    assert lines[-1].endswith(" (all rows: --all)")
    assert {line.split()[0] for line in lines[1:-1]} <= {"warning", "try:", "#"}
    assert any(line.startswith("warning  docker client") for line in lines)
    assert "FOLDER " not in short.out
    assert "FOLDER " in whole.out
    shown = Counter(line.split()[0] for line in whole.out.splitlines() if line)
    assert {state: shown[state] for state in states} == dict(states)


def test_docker_that_was_asked_for_and_is_not_there_is_a_failure(doctor: Callable[..., Told], tmp_path: Path) -> None:
    code, rows, _ = doctor("--engine", "docker", **without_docker(tmp_path))
    assert code == 4
    assert rows["docker client"]["state"] == rows["docker daemon"]["state"] == "failed"
    assert rows["docker daemon"]["fix"]


@pytest.fixture
def spark(tmp_path: Path) -> dict[str, str]:
    """Put a fake nvidia-smi of a DGX Spark on the PATH, because there is no GPU here."""
    (tmp_path / "summary").write_text(SUMMARY)
    script = "#!/bin/sh\ncase \"$1\" in --query*) echo 'NVIDIA GB10, 580.95.05, 12.1, [N/A], [N/A]';;\n"
    script += f"*) /bin/cat {tmp_path}/summary;; esac\n"
    (tmp_path / "nvidia-smi").write_text(script)
    (tmp_path / "nvidia-smi").chmod(0o755)
    return without_docker(tmp_path)


def test_a_profile_that_could_not_start_says_why_and_what_to_do(
    doctor: Callable[..., Told], profiles: Path, spark: dict[str, str]
) -> None:
    file = profiles / "mine.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file.write_text(
            "schema: 1\nname: mine\nsummary: a test\nmachine: dgx-spark\n"
            "runtime: {vllm: 0.32.0}\ntarget: {model: /no/such/model}\n"
            f"draft: {{model: some/draft}}\nspeculative: {{method: draft_model, num_speculative_tokens: 2}}\nserve: {{port: {port}}}\n"
        )
        code, rows, _ = doctor(str(file), **spark)
    assert code == 4
    assert rows["gpu"] == {"name": "gpu", "state": "ok", "message": "NVIDIA GB10, compute capability 12.1", "fix": None}
    assert "no FlashAttention or FlashInfer for Gemma 4" in rows["kernels"]["message"]
    assert rows["driver"]["state"] == "ok"
    assert rows["target"]["message"] == "target.model: missing folder /no/such/model"
    assert rows["draft"]["state"] == "failed"
    assert "it is not in the cache" in rows["draft"]["message"]
    assert rows["runtime"]["fix"] == f"gemmaspec pull {shlex.quote(str(file))} --engine process"
    assert rows["memory"]["state"] == "skipped"
    assert f"port {port} on 127.0.0.1 is in use by" in rows["port"]["message"]
    assert all(row["fix"] for row in rows.values() if row["state"] == "failed")


def test_a_profile_for_a_gpu_on_a_machine_without_one(doctor: Callable[..., Told], tmp_path: Path) -> None:
    code, rows, _ = doctor(
        "spark-31b", "--engine", "process", "--set", "runtime.vllm=0.32.0", **without_docker(tmp_path)
    )
    assert code == 4
    assert rows["gpu"]["state"] == "failed"
    assert "https://www.nvidia.com/drivers" in rows["gpu"]["fix"]
    assert rows["docker"]["state"] == "skipped"
    assert not [name for name in rows if name.startswith("docker ")]


def test_a_profile_that_only_docker_can_run_blames_docker_and_nothing_else(
    doctor: Callable[..., Told], tmp_path: Path
) -> None:
    code, rows, _ = doctor("spark-31b-e2b", **without_docker(tmp_path))
    assert code == 4
    assert rows["docker daemon"]["state"] == "failed"
    assert rows["image"] == {
        "name": "image",
        "state": "skipped",
        "message": "the docker daemon does not answer",
        "fix": None,
    }
    assert rows["port"]["state"] == "ok"
    assert not [row for row in rows.values() if "runtime.vllm" in row["message"]]


def test_a_lock_that_cannot_be_read_is_a_warning_since_up_does_without(
    doctor: Callable[..., Told], profiles: Path, tmp_path: Path
) -> None:
    (profiles / "mine.yaml").write_text("extends: tiny-cpu\nname: mine\n")
    (profiles / "mine.lock").write_text("{")
    _, rows, _ = doctor(str(profiles / "mine.yaml"), "--engine", "process", **without_docker(tmp_path))
    assert rows["lock"]["state"] == "warning"
    assert f"{profiles}/mine.lock:" in rows["lock"]["message"]
    assert rows["lock"]["fix"] or "mine.lock" in rows["lock"]["message"]
    assert rows["runtime"]["state"] == "warning", "not built yet"


def test_a_password_in_an_address_is_not_shown(profiles: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gemmaspec", "doctor", "--json", "spark-31b-e2b", "--engine", "process"]
    env = {**os.environ, "HF_ENDPOINT": "http://me:Secret-4711@127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env={**env, "HF_HUB_OFFLINE": "0"}, check=False)
    assert "http://***@127.0.0.1:9" in done.stdout
    assert "4711" not in done.stdout + done.stderr
    json.loads(done.stdout)


def test_a_clock_an_hour_behind_is_a_warning(doctor: Callable[..., Told], tmp_path: Path, late: str) -> None:
    code, rows, _ = doctor(HF_HUB_OFFLINE="0", HF_ENDPOINT=late, **without_docker(tmp_path))
    assert code == 0
    assert rows["clock"]["state"] == "warning"
    assert f"s behind {late}" in rows["clock"]["message"]


def test_a_profile_that_is_not_valid_is_no_row(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gemmaspec", "doctor", "spark-31c"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "did you mean spark-31b" in done.stderr


def _models_of(folder: Path) -> tuple[DoctorSubject, dict[str, CheckResult]]:
    """The model rows of a shipped profile, with a cache of its own."""
    loaded = load_profile("spark-31b-mtp", overrides=(f"caches.huggingface={folder}/hf",))
    subject = DoctorSubject(loaded=loaded, engine=ProcessEngine(), forced="process")
    return subject, {row.name: row for row in doctor_machine.models(subject)}


def test_without_a_network_the_shapes_that_ship_say_what_is_to_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_of.serve() as asked:
        asked.aim(monkeypatch, tmp_path)
        asked.faults.append(hub_of.Fault(".", times=99, status=503))
        subject, rows = _models_of(tmp_path)
        tried = {one.path for one in asked.requests if one.path.startswith("/api/models/")}
        assert len(tried) == 1, "the second is not tried"
    for role, least in (("target", 16e9), ("draft", 0.5e9)):
        assert rows[role].state == "failed"
        model = subject.profile.target.model if role == "target" else subject.profile.draft.model
        said = f"cannot query the Hub about {model}: it answers 503, and it is not in the cache; "
        assert rows[role].message.startswith(said)
        assert rows[role].message.endswith("GB to fetch, computed from shapes that ship with gemmaspec")
        assert rows[role].fix == f"curl -I {asked.url}/{model}"
        assert least < subject.to_fetch[role] < 3 * least


def test_a_cache_with_all_weights_is_enough_without_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "hf" / "hub" / "models--google--gemma-4-31B-it-assistant"
    snapshot = folder / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    (snapshot / "config.json").write_text("{}")
    assert _models_of(tmp_path)[1]["draft"].state == "warning"
    (snapshot / "model.safetensors").write_bytes(b"x")
    subject, rows = _models_of(tmp_path)
    assert (rows["target"].state, rows["draft"].state) == ("failed", "ok")
    assert rows["draft"].message.endswith("is in the cache, with all weights; the Hub was not asked")
    assert subject.to_fetch["draft"] == 0


def test_models_of_the_hub_are_weighed_against_the_disk(
    doctor: Callable[..., Told], profiles: Path, tmp_path: Path
) -> None:
    file = profiles / "mine.yaml"
    with hub_of.serve() as hub:
        hub.add("some/target", {"config.json": b"{}", "model.safetensors": hub_of.Zeros(b"", 10**15)})
        hub.add("some/draft", {"config.json": b"{}", "model.safetensors": b"x"}, gated="auto")
        file.write_text(
            f"schema: 1\nname: mine\nsummary: a test\nmachine: cpu\nruntime: {{python: {sys.executable}}}\n"
            "target: {model: some/target}\ndraft: {model: some/draft}\n"
            "speculative: {method: draft_model, num_speculative_tokens: 2}\nserve: {port: 8397}\n"
        )
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
        code, rows, _ = doctor(str(file), "--engine", "process", **env)
        assert code == 4
        assert rows["target"]["message"].endswith("1000000.00 GB to download")
        assert rows["target"]["fix"] == f"gemmaspec pull {shlex.quote(str(file))}"
        assert rows["disk, models"]["state"] == "failed"
        assert rows["draft"]["fix"].startswith(f"accept the terms at {hub.url}/some/draft")
        assert rows["runtime"]["state"] == "failed"


@pytest.mark.parametrize(("disks", "needed"), [((1, 1), 30), ((1, 2), 20)], ids=["one disk", "two disks"])
def test_what_one_disk_must_hold_is_added_up(disks: tuple[int, int], needed: int) -> None:
    """Three rows said "ok, 20.4 GB free" of one disk, to which 20.2 GB of models and an image were to be fetched."""
    of = dict(zip((Path("/cache"), Path("/docker")), disks, strict=True))
    assert together({Path("/cache"): 20, Path("/docker"): 10}, Path("/cache"), of.get) == needed


def test_a_folder_that_is_not_there_yet_is_on_the_disk_of_the_one_above(tmp_path: Path) -> None:
    assert disk_of(tmp_path / "not" / "yet") == disk_of(tmp_path) == tmp_path.stat().st_dev
