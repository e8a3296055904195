"""`config`, `gc`, `profile new`, `profile list`, `fit --memory` and the completion of --set."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.cli.app import run
from gemmaspec.cli.fit import gigabytes
from gemmaspec.cli.options import complete_key
from gemmaspec.core.errors import UsageError
from gemmaspec.core.files import state_dir
from gemmaspec.core.profile.find import own_folder
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.engine.server import Server
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.runtime.managed import runtime_dir
from gemmaspec.serve.gc import garbage
from gemmaspec.serve.prepare import runtime_spec


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


# the settings that doctor prints


def test_doctor_says_folders_and_variables_and_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret4711")
    assert run(["doctor", "--json"]) in (0, 4)
    printed = capsys.readouterr().out
    found = {one["name"]: one["value"] for one in json.loads(printed)["settings"]}
    assert found["state"] == found["GEMMASPEC_STATE"] == str(state_dir())
    assert found["HF_TOKEN"] == "set"
    assert found["VLLM_API_KEY"] is None
    assert "4711" not in printed


def test_doctor_names_every_variable_that_the_code_reads(capsys: pytest.CaptureFixture[str]) -> None:
    import re

    package = Path(__file__).parent.parent.parent / "gemmaspec"
    read = {
        name
        for file in package.rglob("*.py")
        if file.parent.name not in ("tiny", "launcher")
        for name in re.findall(r'environ(?:\.get\(|\[)"(GEMMASPEC_\w+|HF_\w+|VLLM_\w+|DOCKER_\w+)"', file.read_text())
    }
    run(["doctor", "--json"])
    named = {one["name"] for one in document(capsys)["settings"]}
    assert read - {"HF_TOKEN_PATH"} <= named


# profile new and list


def test_a_new_profile_extends_another_and_is_found_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "new", "mine", "--from", "spark-31b-e2b"]) == 0
    assert capsys.readouterr().out.strip() == str(own_folder() / "mine.yaml")
    assert load_profile("mine").profile.target == load_profile("spark-31b-e2b").profile.target
    assert run(["profile", "list", "--json"]) == 0
    rows = {row["name"]: row for row in document(capsys)["profiles"]}
    assert (rows["mine"]["source"], rows["tiny-cpu"]["source"]) == ("own", "shipped")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tiny-cpu", "--from", "spark-31b"], "profile tiny-cpu already exists"),
        (["Mine", "--from", "spark-31b"], "is not a valid name"),
        (["../mine", "--from", "spark-31b"], "is not a valid name"),
        (["mine", "--from", "spark-31c"], "did you mean spark-31b"),
        (["mine"], "give one of --from, --from-command, --from-compose and --from-running"),
    ],
)
def test_a_new_profile_needs_a_name_of_its_own_and_a_parent(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "new", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not own_folder().exists()


def test_lint_without_a_name_keeps_to_the_users_own_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    run(["profile", "new", "mine", "--from", "spark-31b-e2b"])
    capsys.readouterr()
    assert run(["profile", "lint", "--json"]) == 0
    found = document(capsys)["profiles"]
    assert [one["name"] for one in found] == ["mine"]
    assert [one for one in found[0]["findings"] if one["severity"] != "error"] == []
    assert run(["profile", "lint", "--shipped", "--json"]) == 0
    assert len(document(capsys)["profiles"]) > 5


def test_a_start_of_a_shipped_profile_tells_no_warning_that_stands_in_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["profile", "lint", "spark-31b-e2b"]) == 0
    assert " warning " in capsys.readouterr().out
    assert run(["render", "spark-31b-e2b", "--out", str(tmp_path / "out")]) == 0
    assert "warning" not in capsys.readouterr().err


# gc


def runtime(key: str) -> Path:
    folder = state_dir() / "runtimes" / key
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("x" * 1000)
    return folder


def found(kind: str) -> list[str]:
    return [Path(one.name).name for one in garbage(volumes=False, note=_NOTES.append) if one.kind == kind]


_NOTES: list[str] = []


def test_gc_frees_runtimes_that_no_profile_stack_or_known_good_uses(capsys: pytest.CaptureFixture[str]) -> None:
    unused, started = runtime("cpu-0.19.0-py3.11-0"), runtime("cpu-0.20.0-py3.11-0")
    shipped = runtime(runtime_dir(runtime_spec(load_profile("tiny-cpu"))).name)
    server = Server(
        name="mine", folder=state_dir() / "stacks" / "mine", port=1, model="x", speculates=False,
        python=started / "bin" / "python",
    )  # fmt: skip
    stacks.save(Started(engine="process", server=server, profile="mine"))
    assert run(["gc", "--dry-run", "--json"]) == 0
    (row,) = document(capsys)["garbage"]
    assert (row["kind"], row["name"]) == ("runtime", str(unused))
    assert unused.exists()
    assert run(["gc"]) == 2, "needs a terminal"
    assert run(["gc", "--yes"]) == 0
    assert not unused.exists()
    assert started.exists()
    assert shipped.exists()


def test_gc_keeps_runtimes_while_a_record_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    unused = runtime("cpu-0.19.0-py3.11-0")
    (state_dir() / "stacks" / "mine").mkdir(parents=True)
    (state_dir() / "stacks" / "mine" / stacks.RECORD).write_text("{")
    assert run(["gc", "--yes"]) == 0
    assert unused.exists()
    assert "keeping all runtimes" in capsys.readouterr().err


def test_gc_frees_logs_that_are_old_and_leaves_the_running_servers_log() -> None:
    run_dir = state_dir() / "stacks" / "mine" / "run"
    run_dir.mkdir(parents=True)
    for file in (run_dir / "server.log", run_dir / "server.log.1", run_dir.parent / "failed.log"):
        file.write_text("a line\n")
    assert found("log") == []
    old = time.time() - 8 * 86_400
    for file in (run_dir / "server.log", run_dir / "server.log.1"):
        os.utime(file, (old, old))
    assert found("log") == ["server.log.1"]
    os.utime(run_dir.parent / "failed.log", (old, old))
    assert sorted(found("log")) == ["failed.log", "server.log.1"]


def test_gc_frees_data_sets_of_prompts_that_are_old() -> None:
    old, new = (state_dir() / "prompts" / "some--set" / commit for commit in ("a" * 40, "b" * 40))
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "chat.jsonl").write_text("{}")
    os.utime(old, (0, 0))
    assert run(["gc", "--yes"]) == 0
    assert (old.exists(), new.exists()) == (False, True)


def test_gc_does_not_follow_links_out_of_the_state_folder(tmp_path: Path) -> None:
    (state_dir() / "runtimes").mkdir(parents=True)
    (tmp_path / "precious").mkdir()
    (state_dir() / "runtimes" / "linked").symlink_to(tmp_path / "precious")
    assert found("runtime") == []


# fit --memory, completion


@pytest.mark.parametrize(
    ("text", "number"),
    [("128", 128), ("128GB", 128), ("128G", 128), ("0.5TB", 500), ("119.21 GiB", 128.0007), ("64000mb", 64)],
)
def test_memory_is_written_as_people_write_it(text: str, number: float) -> None:
    assert gigabytes(text) == pytest.approx(number, rel=1e-4)


@pytest.mark.parametrize("text", ["", "much", "-1", "12GBs", "1e9999", "0"])
def test_memory_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        gigabytes(text)


def test_set_is_completed_one_level_at_a_time() -> None:
    assert "serve." in complete_key("")
    assert "machine=" in complete_key("m")
    assert "serve.port=" in complete_key("serve.p")
    assert complete_key("serve.port=") == []
