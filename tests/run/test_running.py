"""`profile new --from-running`: a process and a container, as /proc and Docker hold them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemmaspec.cli.app import run
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.takeover_running import Container, Running, from_running
from gemmaspec.run.running import processes
from gemmaspec.run.running.find import running
from tests.support.fake_nvidia_smi import FakeNvidiaSmi
from tests.support.real import RUN

IMAGE = "gemmaspec/vllm-cpu:0.32.0"
SPEC = '{"method": "mtp", "model": "google/gemma-4-31B-it-assistant", "num_speculative_tokens": 4}'
FLAGS = ("--max-model-len", "4096", "--port", "8003", "--speculative-config", SPEC)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvidia_smi: FakeNvidiaSmi) -> Path:
    """The user's own profiles, on a machine without a GPU."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    own = tmp_path / "config" / "gemmaspec" / "profiles"
    own.mkdir(parents=True)
    return own


@contextmanager
def fake_server(place: Path, *words: str, through: tuple[str, ...] = (), **environment: str) -> Iterator[int]:
    """Yield the pid of a fake: a program called `vllm` that has a server's words, and waits."""
    program = place / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    program.chmod(0o755)
    given = {"PATH": os.environ["PATH"], "HOME": str(place), **environment}
    started = subprocess.Popen([*through, str(program), *words], env=given, cwd=place)
    try:
        while not (processes.serving_among([started.pid, *processes.below(started.pid)])):
            time.sleep(0.02)
        yield started.pid
    finally:
        for pid in [*processes.below(started.pid), started.pid]:
            os.kill(pid, 9)
        started.wait()


def test_a_process_becomes_a_profile_word_for_word(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("serve", "google/gemma-4-31B-it", *FLAGS, "--api-key", "s3cret", "--served-model-name", "cost-$5")
    shell = {"HF_TOKEN": "s3cret", "NCCL_DEBUG": "INFO", "SSH_AUTH_SOCK": "/s3cret", "GREETING": "s3cret"}
    with fake_server(tmp_path / "env", *words, **shell) as pid:
        assert run(["profile", "new", "mine", "--from-running", str(pid)]) == 0
    said = capsys.readouterr().err
    text = (folder / "mine.yaml").read_text()
    written = yaml.safe_load(text)
    assert written["target"] == {"model": "google/gemma-4-31B-it"}
    assert written["serve"] == {"max_model_len": 4096, "port": 8003, "served_model_name": "cost-$5"}
    assert written["draft"] == {"model": "google/gemma-4-31B-it-assistant"}
    assert written["env"] == {"NCCL_DEBUG": "INFO"}
    assert written["pass_env"] == ["HF_TOKEN", "VLLM_API_KEY"]
    assert f"process {pid}" in written["summary"]
    assert "other variables of its shell" in said
    assert "s3cret" not in f"{text}{said}"
    assert "SSH_AUTH_SOCK" not in f"{text}{said}"


def test_a_script_that_waits_for_its_server_means_that_server(tmp_path: Path) -> None:
    script = ("bash", "-c", '"$0" "$@"; true')
    with fake_server(tmp_path / "env", "serve", "a/b", *FLAGS, through=script) as pid:
        found, folder = running(str(pid))
        assert processes.argv_of(pid)[0] == "bash"
    assert found.argv[-len(FLAGS) - 2 :] == ("serve", "a/b", *FLAGS)
    assert found.called != f"process {pid}"
    assert folder == tmp_path / "env"


def test_a_part_of_a_server_means_the_server_above_it(tmp_path: Path) -> None:
    with fake_server(tmp_path / "env", "serve", "a/b") as pid:
        assert processes.serving_among(processes.above(os.getpid())) is None
        assert processes.process(pid).called == f"process {pid}"


def test_the_release_of_a_virtual_environment_is_read_and_its_python_not_run(tmp_path: Path) -> None:
    place = tmp_path / "env"
    package = place / "lib" / "python3.12" / "site-packages" / "vllm"
    with fake_server(place, "serve", "a/b") as pid:
        (place / "bin" / "python").write_text("#!/bin/sh\ntouch ran\n")
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "_version.py").write_text("__version__ = '0.31.0'\n")
        words = (str(place / "bin" / "python"), *processes.argv_of(pid)[1:])
        assert processes.interpreter(pid, words) == place / "bin" / "python"
    assert processes.installed_vllm(place / "bin" / "python") == "0.31.0"
    assert not list(tmp_path.rglob("ran"))
    made = from_running(Running(called="process 1", argv=("vllm", "serve", "a/b"), exact=True, release="0.31.0"))
    assert made.release == "0.31.0"


@pytest.mark.parametrize(
    ("asked", "said"), [("no-such-thing", "nothing runs under"), ("4194305", "nothing runs under")]
)
def test_what_does_not_run_is_said(asked: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        running(asked)


def test_a_process_that_does_not_serve_is_named_without_its_words() -> None:
    waits = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "s3cret"])
    try:
        while "s3cret" not in processes.argv_of(waits.pid):
            time.sleep(0.02)  # between fork and exec it has no words
        with pytest.raises(UsageError, match="does not serve with vLLM: it runs python") as caught:
            processes.process(waits.pid)
        assert "s3cret" not in f"{caught.value.message}{caught.value.hint}"
    finally:
        waits.kill()
        waits.wait()


def contained(argv: tuple[str, ...] = ("--model", "a/b"), *, exact: bool = False, **container: Any) -> Running:
    """A container as Docker describes it."""
    return Running(called="container c", argv=argv, exact=exact, container=Container(image="i:v0.32.0", **container))


def test_files_and_packages_that_a_start_changed_are_named() -> None:
    site = "/usr/local/lib/python3.12/dist-packages"
    made = from_running(
        contained(
            changed=(
                f"{site}/vllm/model_executor/models/gemma4_mtp.py",
                f"{site}/transformers-5.15.0.dist-info",
                f"{site}/vllm-0.33.0.dist-info",
            )
        )
    )
    assert made.content["runtime"] == {"packages": {"transformers": "==5.15.0"}}
    assert any(
        "gemma4_mtp.py was changed in the container: a changed file of vLLM is a patch" in one for one in made.left
    )
    assert any(one.startswith("vllm 0.33.0, installed in the container") for one in made.left)


def test_a_container_whose_processes_are_hidden_is_read_by_its_command() -> None:
    made = from_running(contained(("bash", "-c", 'exec vllm serve "$@"', "--", "a/b", "--max-num-seqs", "4")))
    assert made.content["target"] == {"model": "a/b"}
    assert made.content["serve"] == {"max_num_seqs": 4}


def test_a_container_of_another_program_is_refused() -> None:
    with pytest.raises(UsageError, match="container c does not serve with vLLM: it runs nginx"):
        from_running(contained(("/usr/sbin/nginx", "-g", "daemon off;")))


def test_an_image_whose_name_has_moved_is_named() -> None:
    assert any("the name refers to another image today" in one for one in from_running(contained(moved=True)).left)


@pytest.mark.real_docker
def test_a_container_becomes_a_profile(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The image's own vLLM is started by a wrapper; whether it still imports or has ended, the answer is the same."""
    name, models = f"gemmaspec-adopt-{RUN}", tmp_path / "models"
    (models / "31B").mkdir(parents=True)
    label = ("--label", f"com.docker.compose.service={name}-service")
    docker = ("docker", "run", "-d", "--name", name, *label, "--network", "none", "-p", "127.0.0.1:8123:8003")
    settings = ("-e", "HF_TOKEN=s3cret", "-e", "NCCL_DEBUG=INFO", "--shm-size", "128m", "-v", f"{models}:/models:ro")
    wrapper = ("--entrypoint", "bash", IMAGE, "-c", 'export TZ=UTC; exec vllm serve "$@"', "--", "/models/31B")
    try:
        subprocess.run([*docker, *settings, *wrapper, *FLAGS], check=True, capture_output=True)
        assert run(["profile", "new", "mine", "--from-running", name]) == 0
        assert run(["profile", "new", "by-service", "--from-running", f"{name}-service"]) == 0
    finally:
        subprocess.run(["docker", "rm", "-f", name], check=False, capture_output=True)
    said = capsys.readouterr().err
    text = (folder / "mine.yaml").read_text()
    written = yaml.safe_load(text)
    by_service = yaml.safe_load((folder / "by-service.yaml").read_text())
    assert by_service | {"name": "mine"} == written
    assert (written["machine"], written["image"]) == ("cpu", IMAGE)
    assert written["target"] == {"model": str(models / "31B")}
    assert written["draft"] == {"model": "google/gemma-4-31B-it-assistant"}
    assert written["serve"]["max_model_len"] == 4096
    assert (written["serve"]["port"], written["serve"]["bind"]) == (8123, "127.0.0.1")
    assert written["container"] == {"shm_size": "128mb"}
    assert written["env"] == {"NCCL_DEBUG": "INFO", "TZ": "UTC"}
    assert written["pass_env"] == ["HF_TOKEN"]
    assert "VLLM_CPU_KVCACHE_SPACE" not in text, "the image itself sets it"
    assert "s3cret" not in f"{text}{said}"
