"""bench --save-ids: what it asks a server for, and the list that it makes of the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.draft_ids import parsed, read
from tests.support.fake_vllm import FakeVllm, fake_vllm


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    with fake_vllm() as server:
        server.ids = {"one": [7, 7, 2500], "two": [7, 2600], "three": [2500], "four": [7, 3071]}
        yield server


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    folder = tmp_path / "prompts"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(f'{{"prompt": "{name}"}}\n' for name in ("one", "two", "three", "four")))
    return folder


def counted(fake: FakeVllm, prompts: Path, tmp_path: Path, *more: str, profile: str = "tiny-cpu-mtp") -> int:
    words = ["--k", str(fake.k), "--concurrency", "1", "--rounds", "1", "--max-tokens", "24", "--repeats", "0"]
    file = ["--save-ids", str(tmp_path / "ids.json"), "--each", "0"]
    where = ["--url", fake.url, "--prompts", str(prompts), "--out", str(tmp_path / "out")]
    return run(["bench", profile, *where, *words, *file, *more])


def test_the_list_has_what_prompts_and_answers_need_and_then_the_lowest_ids(
    fake: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert counted(fake, prompts, tmp_path) == 0
    said = capsys.readouterr().err
    document = json.loads((tmp_path / "ids.json").read_text())
    ids = read(str(tmp_path / "ids.json"))
    assert len(ids) == 3072 // 8
    assert {7, 1, 2500, 2600, 3071} <= set(ids)  # 1 is in each prompt of the fake
    assert ids[:3] == (0, 1, 2)
    assert document["counted"] == {"answers": 4, "tokens": 12, "distinct": 5, "held_out": 0.5}
    assert "384 of 3,072 ids, from 5 counted in 4 answers; a list of one half has 50.0% of the other half's" in said
    assert (tmp_path / "ids.json").stat().st_mode & 0o777 == 0o600
    asked = [body for body in fake.bodies if body.get("return_token_ids")]
    assert [body["messages"][0]["content"] for body in asked] == ["one", "two", "three", "four"]
    assert not any(body["stream"] for body in asked)
    assert parsed(json.dumps(document)) == ids


@pytest.mark.parametrize("answer", [None, [], "7", [True], [-1], [2**40], [7.5]])
def test_a_server_that_names_no_ids_is_told_apart(
    answer: object, fake: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.ids = {"one": answer}
    assert counted(fake, prompts, tmp_path) != 0
    assert "does not say which ids its answers have" in capsys.readouterr().err
    assert not (tmp_path / "ids.json").exists()


@pytest.mark.parametrize("profile", ["tiny-cpu", "spark-e4b-mtp"])
def test_a_draft_that_takes_no_list_is_refused_before_anything_is_asked(
    profile: str, fake: FakeVllm, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert counted(fake, prompts, tmp_path, profile=profile) == 2
    assert "--save-ids" in capsys.readouterr().err
    assert fake.bodies == []
