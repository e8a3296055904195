"""The printer of answers: one document, or a title and rows in columns."""

from __future__ import annotations

import json
import re
from typing import get_args

import pytest

from gemmaspec.check.doctor.result import State, failed
from gemmaspec.cli import doctor, output
from gemmaspec.cli.text import page
from gemmaspec.core.finding import Severity
from gemmaspec.core.live.verdict import Word

ROWS = (("address", "http://127.0.0.1:1/v1"), ("watch", None), ("WARNING", ""), ("attention", "TRITON_ATTN"))


def test_values_stand_in_one_column_and_a_row_without_a_value_is_left_out() -> None:
    assert list(page.lines("it is ready", ROWS, names=page.NAMES)) == [
        "it is ready",
        "  address   http://127.0.0.1:1/v1",
        "  attention TRITON_ATTN",
    ]


def test_a_page_of_its_own_has_a_column_as_wide_as_its_longest_name() -> None:
    rows = (("speed", "24.7 tokens/s"), ("unknown", "nothing"), ("no such figure", None))
    assert list(page.lines("it fits", rows)) == ["it fits", "  speed    24.7 tokens/s", "  unknown  nothing"]


def test_a_long_text_is_continued_below_its_own_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert list(page.hanging("failed  gpu  ", "nvidia-smi finds no GPU, but has one\nmore", shown=13)) == [
        "failed  gpu  nvidia-smi finds no GPU,",
        r"             but has one\nmore",
    ]
    monkeypatch.setenv("COLUMNS", "20")
    assert list(page.hanging("failed  gpu  ", "nvidia-smi finds no GPU", shown=13)) == [
        "failed  gpu  nvidia-smi finds no GPU"
    ]


def test_doctor_continues_a_message_below_its_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        failed("nvidia runtime", "docker has no runtime, so no container can use the GPU", "docker info"),
        failed("gpu", "none", None),
    ]
    monkeypatch.setenv("COLUMNS", "60")
    output.told(*doctor._row_lines(rows, every=True))
    assert capsys.readouterr().out.splitlines() == [
        "failed   nvidia runtime  docker has no runtime, so no",
        "                         container can use the GPU",
        "                         try: docker info",
        "failed   gpu             none",
    ]


def test_several_values_have_one_name() -> None:
    assert list(page.rows_below(page.named("nodes", ("a", "b")))) == ["  nodes     a", "            b"]
    assert list(page.named("nodes", ())) == []


def test_an_answer_is_a_document_or_lines(capsys: pytest.CaptureFixture[str]) -> None:
    page.answer({"ok": True}, ["it is ready"], as_json=False)
    assert capsys.readouterr().out == "it is ready\n"

    def made() -> list[str]:
        raise AssertionError("the lines are not made for --json")

    page.answer({"ok": True}, (line for line in (made,)), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "ok": True}


@pytest.mark.parametrize("word", [*get_args(Severity), *get_args(State), *get_args(Word), "warn"])
def test_every_word_that_judges_has_a_colour(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert page.judged(word, 7) == word.ljust(7)
    monkeypatch.setattr(output, "wants_colour", lambda _: True)
    assert re.fullmatch(rf"\x1b\[\d+m{word}\x1b\[0m  x", output.visible(f"{page.judged(word)}  x"))
