"""What the oracle keeps, and what it takes for known. No vLLM is imported."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parent.parent.parent / "tools"
sys.path.insert(0, str(TOOLS))

import oracle_lint  # noqa: E402
import oracle_release  # noqa: E402


class Fake(oracle_release.Oracle):
    """Answers with the number of questions that reached a vLLM of any of them."""

    def __init__(self, release: str, machine: str, reached: Iterator[int]) -> None:
        super().__init__(release, machine)
        self._reached = reached

    def _start(self) -> Any:
        return object()

    def _answered(self, process: object, question: Mapping[str, Any]) -> dict[str, Any]:
        return {"answer": next(self._reached)}

    def close(self) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the oracle keeps what can be made again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gemmaspec" / "oracle"


def test_a_question_is_asked_once_and_again_when_what_it_depends_on_has_changed(folder: Path) -> None:
    reached = itertools.count(1)
    with Fake("9.9.9", "gb10", reached) as first:
        assert [first.ask({"argv": ["a"]}), first.ask({"argv": ["a"]}), first.ask({"argv": ["b"]})] == [
            {"answer": 1},
            {"answer": 1},
            {"answer": 2},
        ]
    (kept,) = (folder / "answers").glob("9.9.9-gb10-*.jsonl")
    kept.write_text(kept.read_text() + '["cut sho')
    with Fake("9.9.9", "gb10", reached) as second:
        assert second.ask({"argv": ["b"]}) == {"answer": 2}
    with Fake("9.9.8", "gb10", reached) as other:
        assert other.ask({"argv": ["b"]}) == {"answer": 3}
    (folder / "models" / "one").mkdir()
    (folder / "models" / "one" / "config.json").write_text("{}")
    with Fake("9.9.9", "gb10", reached) as third:
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
