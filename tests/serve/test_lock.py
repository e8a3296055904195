"""Locks: what is in them, how strictly they are read, what has moved, and what is rendered by them."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.cli.app import run
from gemmaspec.core.errors import DifferencesFound, EnvironmentMissing, ProfileError, UsageError
from gemmaspec.core.lock.document import Lock, LockedImage, LockedModel, Moved, Versions, moved, pinned, warnings
from gemmaspec.core.lock.text import lock_text, parse_lock
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.run.engine.identity import digest_of, repository_of
from gemmaspec.run.kept import lockfile
from gemmaspec.run.models.digest import folder_digest
from gemmaspec.run.stack.build import build_stack
from gemmaspec.run.trees.versions import interpreter_versions
from gemmaspec.serve import lock, prepare
from tests.support.fake_runtime import Fake, make_models

SHA, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
COMMIT = "c" * 40
LOCK = Lock(
    profile="spark-31b-e2b",
    engine="docker",
    plan=SHA,
    image=LockedImage(name="vllm/vllm-openai:cu130-nightly", digest=SHA, id=OTHER),
    target=LockedModel(model="LilaRest/gemma-4-31B-it-NVFP4-turbo", revision=COMMIT),
    draft=LockedModel(model="mikeytag/gemma-4-E2B-it-NVFP4", asked="v1.10", revision="d" * 40),
    versions=Versions(vllm="0.33.0", torch="2.13.0+cu130", transformers="5.19.0"),
)


def test_a_lock_is_read_as_it_was_written() -> None:
    assert parse_lock(lock_text(LOCK), file="x.lock") == LOCK


@given(st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=40))
def test_any_revision_survives_being_written(asked: str) -> None:
    lock = LOCK.model_copy(update={"target": LOCK.target.model_copy(update={"asked": asked})})
    assert parse_lock(lock_text(lock), file="x.lock") == lock


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("schema: 1", "schema: 2", "x.lock:3: schema: "),
        ('engine: "docker"', 'engine: "podman"', "x.lock:5: engine: "),
        ('engine: "docker"', 'engine: "process"', "image is not allowed for the process engine"),
        (f'plan: "{SHA}"', 'plan: "sha256:abc"', "x.lock:6: plan: "),
        (f'  revision: "{COMMIT}"', '  revision: "main"', "x.lock:13: target.revision: "),
        (f'  revision: "{COMMIT}"', "  revision: ../../etc", "x.lock:13: target.revision: "),
        ('  torch: "2.13.0+cu130"\n', "", "versions.torch: is missing"),
        ("versions:", "version:", "version: unknown key"),
        ("target:", "draft:", "duplicate key"),
        ('name: "vllm/vllm-openai:cu130-nightly"', 'name: "--privileged"', "image.name"),
    ],
)
def test_a_lock_that_was_edited_is_refused_with_its_line(before: str, after: str, said: str) -> None:
    text = lock_text(LOCK)
    assert before in text
    with pytest.raises(ProfileError) as caught:
        parse_lock(text.replace(before, after, 1), file="x.lock")
    assert said in caught.value.message
    assert "gemmaspec lock" in (caught.value.hint or "") or ":" in caught.value.message


@given(st.text(max_size=200))
def test_any_other_text_is_refused_in_words(text: str) -> None:
    with pytest.raises(ProfileError):
        parse_lock(text, file="x.lock")


def test_a_profile_without_an_image_is_not_locked_for_a_container(profiles: Path) -> None:
    (profiles / "bare.yaml").write_text("extends: tiny-cpu\nname: bare\nimage: null\n")
    with pytest.raises(UsageError, match="image: missing, but the docker engine needs it"):
        prepare.resolve(load_profile(str(profiles / "bare.yaml")), "docker", lambda _: COMMIT)


def test_the_tiny_pair_that_is_not_copied_yet_is_told_with_what_copies_it() -> None:
    with pytest.raises(EnvironmentMissing, match="missing folder") as caught:
        lock.known_now(load_profile("tiny-cpu"), "process", LOCK)
    assert caught.value.hint
    assert caught.value.hint.startswith("gemmaspec up tiny-cpu")


def test_a_pipe_is_no_lock_and_is_not_waited_for(profiles: Path) -> None:
    (profiles / "mine.yaml").write_text("extends: tiny-cpu\nname: mine\n")
    os.mkfifo(profiles / "mine.lock")
    with pytest.raises(ProfileError, match="it is a named pipe, not a file"):
        lockfile.read_lock(load_profile(str(profiles / "mine.yaml")))


def test_a_lock_of_a_thousand_pages_is_not_read() -> None:
    with pytest.raises(ProfileError, match="larger than"):
        parse_lock("a: b\n" * 100_000, file="x.lock")


def test_every_thing_that_moved_is_told_with_was_and_is() -> None:
    now = {**LOCK.facts(), "plan": OTHER, "image.digest": OTHER, "draft.model": "none"}
    assert moved(LOCK.facts(), now) == (
        Moved("draft.model", "mikeytag/gemma-4-E2B-it-NVFP4", "none"),
        Moved("plan", SHA, OTHER),
        Moved("image.digest", SHA, OTHER),
    )
    assert str(moved(LOCK.facts(), {"plan": OTHER})[0]) == f"plan: was {SHA}, is {OTHER}"
    assert moved(LOCK.facts(), LOCK.facts()) == ()
    assert moved(LOCK.facts(), {}) == (), "what is not known is not compared"


def test_a_locked_stack_is_rendered_by_digest_and_commit() -> None:
    loaded = pinned(load_profile("spark-31b-e2b"), image=LOCK.image, target=LOCK.target, draft=LOCK.draft)
    files = build_stack(loaded, form="folder").files
    assert f'image: "vllm/vllm-openai:cu130-nightly@{SHA}"' in files["compose.yaml"]
    assert f'- "--revision"\n      - "{COMMIT}"' in files["compose.yaml"]
    assert json.loads(files["speculative-config.json"])["revision"] == "d" * 40
    assert files["plan.json"] == build_stack(load_profile("spark-31b-e2b"), form="folder").files["plan.json"]


def test_an_image_without_a_digest_is_meant_by_its_id() -> None:
    assert LockedImage(name="gemmaspec/vllm-cpu:0.32.0", id=OTHER).ref == OTHER
    assert LockedImage(name=f"a/b:1@{OTHER}", digest=SHA, id=OTHER).ref == f"a/b:1@{SHA}"


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("vllm/vllm-openai:v0.33.0", "vllm/vllm-openai"),
        ("docker.io/library/debian:12", "debian"),
        ("127.0.0.1:5000/good/image:1", "127.0.0.1:5000/good/image"),
        ("127.0.0.1:5000/good/image", "127.0.0.1:5000/good/image"),
        (f"a/b:1@{SHA}", "a/b"),
    ],
)
def test_the_digest_of_an_image_is_that_of_its_own_repository(name: str, repository: str) -> None:
    assert repository_of(name) == repository
    assert digest_of(name, [f"another/name@{OTHER}", f"{repository}@{SHA}"]) == SHA
    assert digest_of(name, [f"another/name@{OTHER}"]) is None


def test_a_vllm_that_states_nonsense_has_no_known_version(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages" / "vllm"
    site.mkdir(parents=True)
    (site / "__init__.py").touch()
    (site / "_version.py").write_text("__version__ = '\\x1b[2J'")
    found = interpreter_versions(tmp_path / "bin" / "python")
    assert found["vllm"] == "unknown"


def safetensors(header: bytes, body: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def model(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors(b'{"a": 1}', b"weights!"))
    return folder


def test_a_folder_s_digest_follows_its_files_and_tensors(tmp_path: Path) -> None:
    first = folder_digest(model(tmp_path / "one"))
    assert first == folder_digest(model(tmp_path / "two"))
    (tmp_path / "two" / "README.md").write_text("not read by vLLM")
    assert first == folder_digest(tmp_path / "two")
    (tmp_path / "two" / "config.json").write_text('{"changed": 1}')
    assert first != folder_digest(tmp_path / "two")
    weights = tmp_path / "one" / "model.safetensors"
    weights.write_bytes(safetensors(b'{"b": 1}', b"weights!"))
    assert first != folder_digest(tmp_path / "one")
    weights.write_bytes(safetensors(b'{"a": 1}', b"weights and more"))
    assert first != folder_digest(tmp_path / "one")


@pytest.mark.parametrize("content", [b"", b"1234", struct.pack("<Q", 2**63), struct.pack("<Q", 200 * 2**20)])
def test_a_file_that_is_no_safetensors_is_told(tmp_path: Path, content: bytes) -> None:
    (model(tmp_path / "one") / "model.safetensors").write_bytes(content)
    with pytest.raises(EnvironmentMissing, match="is not a safetensors file"):
        folder_digest(tmp_path / "one")


# A Python environment that only looks like one: vLLM is never imported to lock it.
PROFILE = """\
schema: 1
name: own
summary: a test
machine: cpu
runtime: {python: %s/bin/python}
target: {model: %s}
serve: {port: 8396}
"""


@pytest.fixture
def own(profiles: Path, tmp_path: Path) -> Path:
    site = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    for name, text in {
        "vllm/__init__.py": "raise SystemExit('imported')",
        "vllm/_version.py": "__version__ = version = '0.32.0'",
        "torch/version.py": "__version__ = '2.13.0+cpu'\ncuda = None",
        "transformers/__init__.py": '# many lines\n__version__ = "5.19.0"\n',
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    file = profiles / "own.yaml"
    file.write_text(PROFILE % (tmp_path / "env", model(tmp_path / "weights")))
    return file


def test_locking_reads_files_and_starts_nothing(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lock", str(own), "--engine", "process", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["file"] == str(own.with_name("own.lock"))
    assert document["lock"]["versions"] == {"vllm": "0.32.0", "torch": "2.13.0+cpu", "transformers": "5.19.0"}
    assert document["lock"]["target"]["digest"].startswith("sha256:")
    assert run(["lock", str(own), "--engine", "process"]) == 0
    assert "already locked; nothing has changed" in capsys.readouterr().out
    assert run(["profile", "list"]) == 0
    assert "own.lock" not in capsys.readouterr().out


def test_a_second_lock_says_what_moved(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["lock", str(own), "--engine", "process"])
    version = tmp_path / "env" / "lib" / "python3.12" / "site-packages" / "torch" / "version.py"
    version.write_text("__version__ = '2.14.0'")
    capsys.readouterr()
    assert run(["lock", str(own), "--engine", "process"]) == 0
    assert "versions.torch: was 2.13.0+cpu, is 2.14.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda own, _: own.write_text(own.read_text() + "patches: {required: [draft-text-only]}\n"), None),
        (
            lambda own, _: own.write_text(own.read_text().replace("/python}", "/python, packages: {pillow: <13}}")),
            "plan: was",
        ),
        (lambda _, tmp: (tmp / "weights" / "config.json").write_text("{ }"), "target.digest: was sha256:"),
        (lambda own, tmp: own.write_text(PROFILE % (tmp / "env", model(tmp / "other"))), "target.model: was "),
    ],
)
def test_up_locked_refuses_what_moved(
    own: Path, tmp_path: Path, change: Any, said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["lock", str(own), "--engine", "process"])
    change(own, tmp_path)
    code = run(["up", str(own), "--engine", "process", "--locked", "--dry-run"])
    err = capsys.readouterr().err
    if said is None:  # a patch for drafting alone is in no plan of a target alone
        assert code == 0, err
        return
    assert code == 3
    assert said in err
    assert f"gemmaspec lock {own}" in err


def test_up_locked_wants_a_lock(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", str(own), "--engine", "process", "--locked"]) == 2
    assert f"own has no lock: missing {own.with_name('own.lock')}" in capsys.readouterr().err


def test_the_versions_of_the_runtime_are_compared_before_a_locked_start(own: Path, tmp_path: Path) -> None:
    run(["lock", str(own), "--engine", "process"])
    site = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    (site / "transformers" / "__init__.py").write_text('__version__ = "5.20.0"\n')
    with pytest.raises(DifferencesFound, match=r"versions\.transformers: was 5\.19\.0, is 5\.20\.0"):
        _check_runtime(load_profile(str(own)))
    assert run(["up", str(own), "--engine", "process", "--locked", "--dry-run"]) == 3  # as the start itself would


def _check_runtime(loaded: Loaded) -> None:
    pinned = lockfile.read_lock(loaded)
    assert pinned
    lock.check_runtime(loaded, pinned, prepare.prepare(loaded, engine="process")[0])


def test_a_lock_for_the_other_engine_is_another(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = lock_text(LOCK).replace('"spark-31b-e2b"', '"own"')
    own.with_name("own.lock").write_text(text)
    assert run(["up", str(own), "--engine", "process", "--locked", "--dry-run"]) == 3
    assert "engine: was docker, is process" in capsys.readouterr().err


def test_another_profile_s_lock_is_refused(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own.with_name("own.lock").write_text(lock_text(LOCK))
    assert run(["up", str(own), "--engine", "process", "--locked"]) == 2
    assert "the lock belongs to spark-31b-e2b, not to own" in capsys.readouterr().err


def test_a_shipped_profile_s_lock_lies_in_the_user_s_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    expected = tmp_path / "gemmaspec" / "profiles" / "spark-31b.lock"
    assert lockfile.lock_file(load_profile("spark-31b")) == expected


def test_what_a_lock_says_of_the_vllm_is_what_lint_and_fit_go_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    loaded = load_profile("spark-31b-e2b")
    assert lockfile.release_of(loaded) is None
    file = lockfile.lock_file(loaded)
    file.parent.mkdir(parents=True)
    file.write_text(
        lock_text(LOCK.model_copy(update={"versions": Versions(vllm="0.30.0", torch="2", transformers="5")}))
    )
    assert lockfile.release_of(loaded) == "0.30.0"
    assert run(["profile", "lint", "spark-31b-e2b"]) == 0
    told = capsys.readouterr()
    assert "checked against vLLM 0.30.0" in told.out + told.err
    assert "GS701" not in told.out + told.err
    assert lockfile.release_of(load_profile("spark-31b-e2b", overrides=["image=other:latest"])) is None
    file.write_text("nonsense: [")
    assert lockfile.release_of(loaded) is None


def test_a_plain_start_is_silent_about_locks_unless_there_is_one_that_differs(own: Path) -> None:
    loaded = load_profile(str(own))
    assert warnings(lockfile.lock_of(loaded), LOCK) == []
    run(["lock", str(own), "--engine", "process"])
    same = lockfile.read_lock(loaded)
    assert same
    assert warnings(lockfile.lock_of(loaded), same) == []
    other = same.model_copy(update={"plan": OTHER})
    assert warnings(lockfile.lock_of(loaded), other) == [
        f"warning: differs from the lock: plan: was {same.plan}, is {OTHER}"
    ]
    own.with_name("own.lock").write_text("nonsense: [")
    assert warnings(lockfile.lock_of(loaded), same)[0].startswith("warning: ")


def test_an_environment_without_vllm_cannot_be_locked(
    profiles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = profiles / "own.yaml"
    file.write_text(PROFILE % (sys.prefix, model(tmp_path / "weights")))
    assert run(["lock", str(file), "--engine", "process"]) == 4
    assert "has no vllm" in capsys.readouterr().err
    assert not file.with_name("own.lock").exists()


def test_a_damaged_lock_is_replaced(profiles: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    make_models()
    (profiles / "mine.yaml").write_text(
        f"extends: tiny-cpu\nname: mine\nruntime: {{python: {fake.python}, vllm: null}}\n"
    )
    for damaged in (b"schema: 'x", b"\xff\xfe", b"", b"schema: 1\n"):
        (profiles / "mine.lock").write_bytes(damaged)
        assert run(["up", str(profiles / "mine.yaml"), "--locked", "--dry-run", "--engine", "process"]) == 2
        assert "gemmaspec lock" in capsys.readouterr().err
        assert run(["lock", str(profiles / "mine.yaml"), "--engine", "process"]) == 0
        told = capsys.readouterr()
        assert "replacing the damaged lock" in told.err
        assert "mine is locked" in told.out
        assert "vllm " in told.out
    (profiles / "mine.lock").unlink()
    os.mkfifo(profiles / "mine.lock")
    assert run(["lock", str(profiles / "mine.yaml"), "--engine", "process"]) == 2
