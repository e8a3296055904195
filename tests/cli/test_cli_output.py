"""How text and tables fit a terminal: nothing breaks inside a word or a path, and columns are left out whole."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.cli.app import run
from gemmaspec.cli.output import coloured, fitted, json_data, visible
from gemmaspec.cli.text.table import Column, lines
from gemmaspec.core.finding import Finding
from gemmaspec.core.strict_yaml import Place

COLUMNS = (Column("NAME"), Column("ENGINE", rank=1), Column("SINCE", rank=2), Column("WHAT", wraps=True))
ROWS = [
    (
        "spark-deckard-31b-e4b",
        "docker",
        "12 min",
        "a text that is long enough to go on below the first line of its row",
    ),
    ("tiny-cpu", "process", "3 s", "short"),
]


def test_a_long_line_goes_on_below_its_second_column() -> None:
    line = "  vllm      0.32.0 at /usr/local/lib/python3.11/dist-packages/vllm, overlay built in 8 ms"
    assert fitted(line, 60).splitlines() == [
        "  vllm      0.32.0 at",
        "            /usr/local/lib/python3.11/dist-packages/vllm,",
        "            overlay built in 8 ms",
    ]


def test_a_line_that_is_indented_deep_keeps_its_indent() -> None:
    line = f"{'':12}draft-text-only              applies     vllm/v1/spec_decode/llm_base_proposer.py:338"
    first, second = fitted(line, 80).splitlines()
    assert first.startswith(f"{'':12}draft-text-only  ")
    assert second.strip() == "vllm/v1/spec_decode/llm_base_proposer.py:338"


def test_a_line_with_a_late_column_goes_on_below_its_beginning() -> None:
    line = "    use vLLM 0.33 or later for long prompts, or measure yours  [gemmaspec explain GS506]"
    assert fitted(line, 60).splitlines() == [
        "    use vLLM 0.33 or later for long prompts, or measure",
        "      yours  [gemmaspec explain GS506]",
    ]


def test_a_colour_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    message = "image  vllm/vllm-openai:v0.32.0 is not on this machine; `up` will pull it"
    in_colour = visible(fitted(f"{coloured('warning', 33, Terminal())}  {message}", 50))
    assert in_colour.startswith("\x1b[33mwarning\x1b[0m  image  ")
    assert re.sub(r"\x1b\[[0-9]+m", "", in_colour) == fitted(f"warning  {message}", 50)
    assert "\n         this machine" in in_colour


@given(st.text(alphabet="ab/. -", max_size=300), st.integers(min_value=10, max_value=140))
def test_no_word_is_broken_or_lost(text: str, width: int) -> None:
    assert fitted(text, width).split() == text.split()


def test_a_request_to_copy_is_one_line_whatever_it_contains() -> None:
    line = '         ask       curl http://127.0.0.1:1/v1 -d \'{"content": "x = 1    # one"}\''
    assert fitted(line, 40) == line


def test_a_next_command_is_one_line() -> None:
    line = "  next        gemmaspec up '/home/somebody/my profiles/spark-31b-mtp-tuned.yaml'"
    assert fitted(line, 40) == line


def test_a_pipe_gets_lines_as_they_are() -> None:
    assert fitted("word " * 100, None) == "word " * 100


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (140, "NAME                   ENGINE   SINCE   WHAT"),
        (64, "NAME                   ENGINE   SINCE   WHAT"),
        (60, "NAME                   ENGINE   WHAT"),
        (48, "NAME                   WHAT"),
    ],
)
def test_a_table_leaves_out_columns_and_no_letters(width: int, head: str) -> None:
    made = lines(COLUMNS, ROWS, width=width)
    assert made[0] == head
    assert all(len(line) <= width for row in made for line in row.splitlines())
    assert " ".join("\n".join(made).split()).count("long enough") == 1
    words = " ".join(made).split()
    assert all(word in words for word in ROWS[0][3].split())


def test_numbers_are_aligned_to_the_right_after_an_indent() -> None:
    made = lines(
        (Column("k", right=True), Column("tok/s", right=True)),
        [("2", "90.5"), ("10", "1,000.0")],
        width=80,
        indent="  ",
    )
    assert made == ["   k    tok/s", "   2     90.5", "  10  1,000.0"]


def test_a_table_in_a_pipe_is_whole() -> None:
    made = lines(COLUMNS, ROWS, width=None)
    assert made[1].endswith(ROWS[0][3])


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize(
    "arguments",
    [
        ["profile", "list"],
        ["patch", "list"],
        ["doctor"],
        ["inspect", "spark-31b"],
        ["fit", "spark-31b"],
        ["predict", "nvidia-31b-mtp", "--set", "machine=h200", "--k", "0,2,4", "--concurrency", "1,4"],
    ],
)
def test_what_commands_print_keeps_to_the_width(
    arguments: list[str], width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run(arguments)
    for line in capsys.readouterr().out.splitlines():
        assert len(line) <= width or len(line.split()[-1]) > width // 2, line  # a path is not broken


def test_patches_are_listed_in_a_narrow_window(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert run(["patch", "list"]) == 0
    head, *others = capsys.readouterr().out.splitlines()
    assert head.split() == ["PATCH", "TITLE"]
    assert max(map(len, others)) <= 60


def test_json_has_a_form_for_records_paths_and_sets_and_for_nothing_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding(code="GS1", severity="note", message="m", place=Place("p.yaml", 3), patches=("a",))
    json_data({"found": (finding,), "column": COLUMNS[0], "file": Path("a/b"), "kinds": frozenset("ba")})
    found = json.loads(capsys.readouterr().out)
    assert (found["found"][0]["file"], found["found"][0]["line"], found["found"][0]["patches"]) == ("p.yaml", 3, ["a"])
    assert (found["column"]["title"], found["file"], found["kinds"]) == ("NAME", "a/b", ["a", "b"])
    with pytest.raises(AttributeError):
        json_data({"unknown": object()})
