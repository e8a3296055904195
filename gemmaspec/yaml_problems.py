"""Explain a YAML parser's errors to the person who wrote the file, and detect misleading characters. Pure."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

import yaml

_VALUE: Final = re.compile(r"\s*(?:- )*[^\s:#][^:#]*:\s+\S")
_INDENT: Final = re.compile(r"[ \t]*")
_QUOTES: Final = "\u201c\u201d\u201e\u201f\u2018\u2019\u201a\u201b\u00ab\u00bb\u00b4"
"""Curly quotes, guillemets and an acute accent."""
_NAMES: Final = {
    "\u00a0": "a no-break space",
    "\u00ad": "a soft hyphen",
    "\u200b": "a zero-width space",
    "\u2060": "a word joiner",
    "\ufeff": "a byte order mark",
}


def explained(problem: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    """Return the 1-based line of a parser's error, and one sentence that says what to change."""
    mark = problem.problem_mark or problem.context_mark
    number, column = (mark.line, mark.column) if mark else (0, 0)
    lines = text.splitlines()
    line = lines[number] if number < len(lines) else ""
    if "\t" in _indent(line):
        return number + 1, "the line begins with a tab; YAML indents with spaces"
    if line.lstrip().startswith("--"):
        flag = line.split()[0].partition("=")[0]
        key = flag.removeprefix("--").replace("-", "_")
        named = "speculative: {method: mtp, …}" if key == "speculative_config" else f"serve: {{{key}: …}}"
        return number + 1, f"{flag} is a flag of a command line; a profile writes {named}"
    problem_text = str(problem.problem)
    if problem_text.startswith("mapping values"):
        return number + 1, _unexpected_colon(lines[: number + 1], column)
    if "unexpected end of stream" in problem_text or problem_text.startswith("did not find expected ',' or"):
        return _unclosed(problem, number)
    if problem_text.startswith("found character that cannot start"):
        return number + 1, f"a value cannot begin with {line[column : column + 1]!r}; put it in quotes"
    if problem_text == "could not find expected ':'" and problem.context_mark:
        number = problem.context_mark.line
        return number + 1, f"{lines[number].strip()[:60]!r} is not `key: value`; put a space after the colon"
    if problem_text == "did not find expected key":
        return number + 1, _unexpected_line(line, column)
    if "<document start>" in problem_text:
        return number + 1, "indented less than the line above; all keys of one level must begin in the same column"
    if "escape character" in problem_text:
        return number + 1, "unknown escape in a double-quoted text; write '…', or double the backslash"
    return number + 1, problem_text


def _unexpected_colon(lines: list[str], column: int) -> str:
    line = lines[-1]
    if re.search(r":\s", line[:column]):
        key, _, value = line.strip().partition(":")
        return f"the value contains a colon; put it in quotes: {key}: '{value.strip()}'"
    above = next((line for line in reversed(lines[:-1]) if line.strip() and not line.lstrip().startswith("#")), "")
    if _VALUE.match(above) and len(_indent(line)) > len(_indent(above)):
        return "indented more than the line above, which has a value; keys of one level must begin in the same column"
    return f"{above.strip()[:60]!r}, the line above, is not `key: value`; put a space after the colon"


def _unexpected_line(line: str, column: int) -> str:
    if line[:column].strip():
        return "there is text after the closing quote or bracket; put the whole value into one pair of quotes"
    if line.lstrip().startswith("- "):
        return "a list item is between keys; indent it below the key that it belongs to"
    return "indented differently from the keys around it; all keys of one level must begin in the same column"


def _unclosed(problem: yaml.MarkedYAMLError, number: int) -> tuple[int, str]:
    begin = problem.context_mark.line if problem.context_mark else number
    kind = str(problem.context)
    what = "quote" if "scalar" in kind else "{" if "mapping" in kind else "["
    return begin + 1, f"the {what} that opens in this line is not closed"


def odd_character(word: str) -> str | None:
    """Return the problem with a key or an unquoted value: a space that YAML does not know, or a typographic quote."""
    for char in word:
        if char in _NAMES or (unicodedata.category(char) == "Zs" and char != " "):
            name = _NAMES.get(char) or unicodedata.name(char, "a character").lower()
            return f"contains {name} (U+{ord(char):04X}), which is not a space in YAML; retype it, or quote the value"
    if word[:1] and word[0] in _QUOTES:
        return f"begins with {word[0]} (U+{ord(word[0]):04X}), which is not a quote in YAML; write ' or \""
    return None


def undecodable(data: bytes, position: int) -> tuple[int, str]:
    """Return the 1-based line of the first byte that is not UTF-8, and one sentence on it."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return 1, "looks like UTF-16; save it as UTF-8"
    line = data[:position].count(b"\n") + 1
    column = position - (data.rfind(b"\n", 0, position) + 1) + 1
    return line, f"is not UTF-8 text: byte 0x{data[position]:02x} at column {column}; save it as UTF-8"


def _indent(line: str) -> str:
    indent = _INDENT.match(line)
    return indent[0] if indent else ""
