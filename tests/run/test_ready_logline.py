"""Lines of logs: what they say and what of them is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.run.ready.logline import MAX_LINE, message_of, printable


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "(EngineCore_DP0 pid=12) hello",
        "INFO 11-20 17:48:56 [core.py:133] hello",
        "(Worker pid=1) ERROR 11-20 17:50:25 [core.py:1510] hello\r",
        "\x1b[0;36m(APIServer pid=7)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-20 17:48:56\x1b[0m "
        "\x1b[90m[v1/engine/core.py:133]\x1b[0m hello",
        "  0%|   | 0/3\r 33%|#  | 1/3\rhello",
    ],
)
def test_the_message_is_what_stands_behind_prefixes_and_colours(line: str) -> None:
    assert message_of(line) == "hello"


def test_a_shown_line_can_do_nothing_to_a_terminal() -> None:
    hostile = "a\x1b[2Jb\x1b]0;title\x07c\x9b31md\u202ee\x00f\tg"
    shown = printable(hostile)
    assert shown.isprintable()
    assert shown.startswith("abc")


@pytest.mark.parametrize(
    "line",
    [
        "non-default args: {'api_key': ['correct-horse'], 'port': 8000}",
        "Authorization: Bearer correct-horse",
        "HF_TOKEN=correct-horse vllm serve",
        '{"token": "correct-horse"}',
        "downloading with hf_correcthorse",
        "it says correct-horse in the middle",
    ],
)
def test_secrets_are_not_shown(line: str) -> None:
    shown = printable(line, secrets=["correct-horse"])
    assert "horse" not in shown
    assert "***" in shown
    assert "horse" not in printable(line) or "middle" in line


def test_counts_of_tokens_are_no_secrets() -> None:
    line = "max_num_batched_tokens=8192, num_spec_tokens=4, completion_tokens: 123456"
    assert printable(line) == line


@given(st.text(), st.lists(st.text(min_size=6), max_size=2))
def test_any_text_is_shown_as_printable_text(text: str, secrets: list[str]) -> None:
    assert printable(text, secrets=secrets).isprintable()
    assert len(message_of(text)) <= MAX_LINE
