"""`gemmaspec render`: the files of every profile, byte for byte, and what Docker Compose says of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.errors import ProfileError
from gemmaspec.core.launcher import ATTEST_FILES, ORIGINS_FILE
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.stack.build import build_stack
from gemmaspec.run.stack.folder import MANIFEST
from tests.support.golden_stacks import golden_files

GOLDEN = Path(__file__).parent.parent / "golden"
PROFILES = list(profile_names([data.PROFILES]))
HOSTILE = '/a b/it\'s "quoted" $HOME ${X:-y} $$ #: {z} \\n é 漢'
"""A folder name that Docker takes and every layer of quoting can stumble over."""


def compose_available() -> bool:
    """Whether `docker compose` can check a file; that takes no daemon."""
    docker = shutil.which("docker")
    return (
        bool(docker)
        and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0
    )


needs_compose = pytest.mark.skipif(not compose_available(), reason="Docker Compose is not installed: make docker")


def compose_config(file: Path) -> dict[str, Any]:
    """What Docker Compose reads from a file, everything interpolated."""
    environment = {**os.environ, "HOME": "/home/somebody", "VLLM_API_KEY": "k"}
    environment.pop("GEMMASPEC_STATE", None)
    command = ["docker", "compose", "-f", str(file), "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize("name", PROFILES)
def test_a_shipped_profile_renders_its_golden_files(name: str) -> None:
    files = {file for file in (GOLDEN / name).rglob("*") if file.is_file()}
    kept = {str(file.relative_to(GOLDEN / name)): file.read_text() for file in files}
    assert golden_files(load_profile(name)) == kept, "after a change that is meant: make golden, and read the diff"


def test_the_launcher_is_a_copy_of_the_projects_own() -> None:
    stack = build_stack(load_profile("tiny-cpu"), form="folder")
    assert stack.files["launch.py"] == data.LAUNCHER.read_text()
    assert "rank_facts.py" not in stack.files
    assert stack.files["probe.py"] == data.PROBE.read_text()


def test_the_chat_template_is_a_copy_of_the_projects_own() -> None:
    stack = build_stack(load_profile("tiny-cpu"), form="folder")
    assert stack.files["chat-template.jinja"] == (data.TEMPLATES / "gemma4.jinja").read_text()


@needs_compose
@pytest.mark.parametrize("form", ["folder", "single-file"])
@pytest.mark.parametrize("name", [name for name in PROFILES if load_profile(name).profile.nodes == 1])
def test_docker_compose_accepts_the_stack(name: str, form: Any, tmp_path: Path) -> None:
    for file, text in build_stack(load_profile(name), form=form).files.items():
        (tmp_path / file).write_text(text)
    service = compose_config(tmp_path / "compose.yaml")["services"]["vllm"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [port["host_ip"] for port in service["ports"]] == ["127.0.0.1"]


def test_rendering_twice_gives_the_same_bytes_in_any_hash_order() -> None:
    script = (
        "from gemmaspec.core.profile.load import load_profile; from gemmaspec.run.stack.build import build_stack;"
        "import hashlib; files = build_stack(load_profile('spark-31b-e2b'), form='single-file').files;"
        "print(hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1


def test_rendering_needs_neither_docker_nor_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys; from gemmaspec.cli.app import run; code = run(['render', 'tiny-cpu', '--out', 'x']);"
        "assert not {'docker', 'httpx', 'requests', 'huggingface_hub', 'psutil'} & set(sys.modules); sys.exit(code)"
    )
    monkeypatch.setenv("PATH", "/nonexistent")
    assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False).returncode == 0
    assert (tmp_path / "x" / "compose.yaml").is_file()


def test_render_writes_the_stack_and_check_then_finds_no_difference(tmp_path: Path) -> None:
    out = tmp_path / "stack"
    assert run(["render", "tiny-cpu", "--out", str(out)]) == 0
    names = {file.name for file in out.iterdir()} - {MANIFEST}
    assert names == {
        "compose.yaml",
        "plan.json",
        "launch.py",
        ORIGINS_FILE,
        *ATTEST_FILES,
        "probe.py",
        "speculative-config.json",
        "chat-template.jinja",
    }
    assert run(["render", "tiny-cpu", "--out", str(out), "--check"]) == 0


def test_check_prints_the_difference_writes_nothing_and_exits_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "stack"
    run(["render", "tiny-cpu", "--out", str(out)])
    before = (out / "compose.yaml").read_bytes()
    assert run(["render", "tiny-cpu", "--out", str(out), "--check", "--set", "serve.port=9999"]) == 3
    printed = capsys.readouterr().out
    assert '-      - "127.0.0.1:8321:8321"' in printed
    assert '+      - "127.0.0.1:9999:9999"' in printed
    assert (out / "compose.yaml").read_bytes() == before


def test_check_on_a_folder_that_is_not_there_exits_3_and_makes_none(tmp_path: Path) -> None:
    assert run(["render", "tiny-cpu", "--out", str(tmp_path / "x"), "--check"]) == 3
    assert not (tmp_path / "x").exists()


def test_a_stack_without_speculation_drops_the_file_of_an_earlier_one(tmp_path: Path) -> None:
    run(["render", "tiny-cpu", "--out", str(tmp_path)])
    (tmp_path / "notes.txt").write_text("mine")
    assert run(["render", "tiny-cpu", "--out", str(tmp_path), "--no-spec"]) == 0
    assert not (tmp_path / "speculative-config.json").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert "--speculative-config" not in (tmp_path / "compose.yaml").read_text()


@needs_compose
def test_the_single_file_carries_every_file_of_the_stack(tmp_path: Path) -> None:
    assert run(["render", "tiny-cpu", "--single-file", "--out", str(tmp_path)]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [MANIFEST, "compose.yaml"]
    document = compose_config(tmp_path / "compose.yaml")
    carried = {
        config["target"]: document["configs"][config["source"]]["content"]
        for config in document["services"]["vllm"]["configs"]
    }
    wanted = build_stack(load_profile("tiny-cpu"), form="folder").files
    # `docker compose config` prints `$` as `$$`, so that its output can be read again
    carried = {target: text.replace("$$", "$") for target, text in carried.items()}
    assert carried == {f"/gemmaspec/{name}": text for name, text in wanted.items() if name != "compose.yaml"}


def _string_fields() -> Iterator[tuple[str, str]]:
    """Every field of a profile that takes free text, as --set would name it, and a value for it."""
    yield from ((field, HOSTILE) for field in ("target.model", "draft.model", "caches.huggingface", "caches.compile"))
    for field in (
        *("summary", "target.revision", "target.quantization", "draft.revision", "draft.quantization"),
        *("speculative.attention_backend", "speculative.kv_cache_dtype", "speculative.moe_backend"),
        *("serve.served_model_name", "serve.dtype", "serve.load_format", "serve.kv_cache_dtype"),
        *("serve.attention_backend", "serve.linear_backend", "serve.moe_backend", "serve.generation_config"),
        *("chat.reasoning_parser", "chat.tool_call_parser", "container.python", "env.ANY"),
    ):
        yield field, HOSTILE
    yield "serve.extra_args", json.dumps([HOSTILE])
    yield "chat.template_kwargs", json.dumps({HOSTILE: HOSTILE})


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _flat(item)
    elif isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield str(value)


@needs_compose
def test_hostile_text_in_every_free_field_arrives_unchanged(tmp_path: Path) -> None:
    fields = dict(_string_fields())
    overrides = [
        f"{field}={value if value.startswith(('[', '{')) else json.dumps(value)}" for field, value in fields.items()
    ]
    for file, text in build_stack(load_profile("tiny-cpu", overrides=overrides), form="folder").files.items():
        (tmp_path / file).write_text(text)
    assert json.loads((tmp_path / "speculative-config.json").read_text())["revision"] == HOSTILE
    service = compose_config(tmp_path / "compose.yaml")["services"]["vllm"]
    # `docker compose config` prints `$` as `$$`, so that its output can be read again
    seen = [text.replace("$$", "$") for text in _flat(service)]
    flags = [
        "--revision",
        "--quantization",
        "--served-model-name",
        "--dtype",
        "--load-format",
        "--kv-cache-dtype",
    ]
    assert all(seen[seen.index(flag) + 1] == HOSTILE for flag in flags)
    assert service["environment"]["ANY"].replace("$$", "$") == HOSTILE
    sources = {volume["target"]: volume["source"].replace("$$", "$") for volume in service["volumes"]}
    assert {sources[target] for target in ("/models/target", "/models/draft", "/var/tmp")} == {HOSTILE}
    assert json.loads(seen[seen.index("--default-chat-template-kwargs") + 1])[HOSTILE] == HOSTILE
    assert yaml.safe_load((tmp_path / "compose.yaml").read_text())["name"] == "gemmaspec-tiny-cpu"


@pytest.mark.parametrize(
    "field",
    ["name", "machine", "image", "serve.bind", "container.user", "container.shm_size", "runtime.vllm"],
)
def test_hostile_text_in_a_field_with_a_form_is_one_clear_error(field: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile("tiny-cpu", overrides=[f"{field}={json.dumps(HOSTILE)}"])
    assert f"{field}:" in caught.value.message
    assert len(caught.value.message.splitlines()) == 1


@pytest.mark.parametrize(
    "field", [field for field, _ in _string_fields() if "args" not in field and "kwargs" not in field]
)
def test_a_control_character_in_a_free_field_is_refused(field: str) -> None:
    with pytest.raises(ProfileError, match="control character"):
        load_profile("tiny-cpu", overrides=[f'{field}="/a\\nb"'])


def test_a_key_from_the_shell_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "very-secret-key")
    monkeypatch.setenv("HF_TOKEN", "very-secret-token")
    arguments = ["--set", "serve.bind=0.0.0.0", "--set", "pass_env=[HF_TOKEN, VLLM_API_KEY]"]
    assert run(["render", "spark-31b-e2b", "--out", str(tmp_path), *arguments]) == 0
    written = "".join(file.read_text() for file in tmp_path.iterdir())
    assert "very-secret" not in written
    assert "VLLM_API_KEY: ${VLLM_API_KEY:?" in written
    assert '"0.0.0.0:8000:8000"' in written


def test_a_full_disk_leaves_the_old_stack_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid():
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=False).returncode == 0
    )
    if not mounted:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        out = disk / "stack"
        out.mkdir()
        (out / "compose.yaml").write_text("old")
        (disk / "filler").write_bytes(b"x" * 50_000)
        assert run(["render", "tiny-cpu", "--out", str(out), "--force"]) == 4
        assert "no space left" in capsys.readouterr().err
        assert {file.name: file.read_text() for file in out.iterdir()} == {"compose.yaml": "old"}
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_render_loses_no_file_that_it_did_not_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("compose.yaml", "plan.json", "launch.py"):
        (tmp_path / name).write_text("mine")
    command = ["render", "tiny-cpu", "--out", str(tmp_path)]
    for how in ((), ("--single-file",)):
        assert run([*command, *how]) == 2
        err = capsys.readouterr().err
        assert f"gemmaspec did not write {tmp_path}/compose.yaml, {tmp_path}/plan.json, {tmp_path}/launch.py" in err
        assert "--force" in err
        assert sorted(file.read_text() for file in tmp_path.iterdir()) == ["mine"] * 3
    assert run([*command, "--force"]) == 0
    assert run([*command, "--set", "serve.port=8601"]) == 0, "its own files it replaces"
    assert run([*command, "--single-file"]) == 0, "and removes"
    (tmp_path / "compose.yaml").write_text((tmp_path / "compose.yaml").read_text() + "# tuned by hand\n")
    assert run(command) == 2
    assert "# tuned by hand" in (tmp_path / "compose.yaml").read_text()


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_file_that_cannot_be_written_is_the_one_that_is_named(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan.mkdir() if kind == "folder" else os.mkfifo(plan) if kind == "pipe" else plan.symlink_to("/dev/zero")
    assert run(["render", "tiny-cpu", "--out", str(tmp_path)]) == 2
    assert str(plan) in capsys.readouterr().err
    code = run(["render", "tiny-cpu", "--out", str(tmp_path), "--force"])
    err = capsys.readouterr().err
    if kind == "folder":
        assert (code, f"cannot write {plan}: a folder is in its place" in err) == (4, True)
    else:
        assert code == 0, err
