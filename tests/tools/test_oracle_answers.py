"""What the oracle keeps, and what it takes for known. No vLLM is imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parent.parent.parent / "tools"
sys.path.insert(0, str(TOOLS))

import oracle_lint  # noqa: E402
import oracle_release  # noqa: E402


class Fake(oracle_release.Oracle):
    """Answers with the number of questions that reached a vLLM."""

    reached = 0

    def _start(self) -> Any:
        return object()

    def _answered(self, process: object, question: Mapping[str, Any]) -> dict[str, Any]:
        Fake.reached += 1
        return {"answer": Fake.reached}

    def close(self) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models" / "one").mkdir(parents=True)
    (tmp_path / "models" / "one" / "config.json").write_text("{}")
    monkeypatch.setattr(oracle_release, "model_folders", lambda: tmp_path / "models")
    monkeypatch.setattr(oracle_release, "_folder", lambda _: tmp_path)
    monkeypatch.setattr(Fake, "reached", 0)
    return tmp_path


def test_a_question_is_asked_once_and_again_when_what_it_depends_on_has_changed(folder: Path) -> None:
    with Fake("9.9.9", "gb10") as first:
        assert [first.ask({"argv": ["a"]}), first.ask({"argv": ["a"]}), first.ask({"argv": ["b"]})] == [
            {"answer": 1},
            {"answer": 1},
            {"answer": 2},
        ]
    (kept,) = folder.glob("9.9.9-gb10-*.jsonl")
    kept.write_text(kept.read_text() + '["cut sho')
    with Fake("9.9.9", "gb10") as second:
        assert second.ask({"argv": ["b"]}) == {"answer": 2}
    with Fake("9.9.8", "gb10") as other:
        assert other.ask({"argv": ["b"]}) == {"answer": 3}
    (folder / "models" / "one" / "config.json").write_text('{"changed": true}')
    with Fake("9.9.9", "gb10") as third:
        assert third.ask({"argv": ["b"]}) == {"answer": 4}


@pytest.mark.parametrize(
    ("side", "said", "given", "known"),
    [
        ("engine", "Assertion failed, libcudart is not loaded in the current process", "--enable-sleep-mode", True),
        ("engine", "Assertion failed, libcudart is not loaded in the current process", "--enable-lora", False),
        ("lint", "GS202 /m/head is made for eagle3", "speculative.method=dflash", True),
        ("lint", "GS202 /m/head is made for eagle3", "serve.block_size=16", False),
        ("lint", "GS102 vLLM 0.33.0 has no attention backend 'X'", "serve.attention_backend=X", False),
        ("engine", "Value error, a draft array is missing from the ray", "--enable-lora", False),
    ],
)
def test_what_is_expected_is_narrow(side: str, said: str, given: str, *, known: bool) -> None:
    assert bool(oracle_lint.expected(side, said, given)) == known


def test_everything_expected_says_to_which_change_and_why() -> None:
    for one in oracle_lint.EXPECTED:
        assert len(one.says) >= 12
        assert not re.search(one.says, "")
        assert not re.search(one.given, "")
        assert one.why
