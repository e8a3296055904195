"""A wrong word on the command line is answered in one sentence: the word, what may stand there, and the next command."""

from __future__ import annotations

import json

import pytest

from gemmaspec.cli.app import run


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ("up x --timeout 0", "--timeout must be a number of at least 1, not '0'", "up"),
        ("up x --timeout=soon", "--timeout must be a number of at least 1, not 'soon'", "up"),
        ("status x --wait --timeout -5", "--timeout must be a number of at least 1, not '-5'", "status"),
        ("logs x --tail x", "--tail must be a whole number of at least 0, not 'x'", "logs"),
        ("logs x -n -3", "--tail must be a whole number of at least 0, not '-3'", "logs"),
        ("bench x --rounds 21", "--rounds must be a whole number from 1 to 20, not '21'", "bench"),
        ("bench x --max-tokens 2", "--max-tokens must be a whole number from 8 to 1,000,000, not '2'", "bench"),
        ("top --port 70000", "--port must be a whole number from 0 to 65,535, not '70000'", "top"),
        ("rollback x --stak y", "gemmaspec rollback has no option --stak; did you mean --stack?", "rollback"),
        ("up --enginee docker", "gemmaspec up has no option --enginee; did you mean --engine?", "up"),
        ("logs", "gemmaspec logs needs NAME", "logs"),
        ("logs x --tail", "--tail needs a value", "logs"),
        ("up a b c", "gemmaspec up does not take b c", "up"),
        ("patch verify --release", "--release needs a value", "patch verify"),
    ],
)
def test_a_wrong_word_is_named_with_what_may_stand_there(
    words: str, said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.err == f"error: {said}\n  try: gemmaspec {hint} --help\n"
    assert printed.out == ""


def test_it_is_one_document_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "x", "--timeout", "0", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"] == "--timeout must be a number of at least 1, not '0'"
    assert error["hint"] == "gemmaspec up --help"


@pytest.mark.parametrize("words", [["--foo"], ["patch", "--foo"], ["staus"], ["patch", "verfy"]])
def test_no_error_speaks_the_parser_s_language(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "Usage:" not in said
