"""`explain`: what a code or a word of the output means, from where it is defined."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.core import data, errors
from gemmaspec.core.errors import UsageError

_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)\s]+\)")
_EXIT: Final = re.compile(r"^\S*\s*(\w+) +(\d+) +(.+)$", re.MULTILINE)
_WORDS: Final = 3
"""Words of the longest name that can be asked, such as `exit code 5`."""
PAGES: Final = ("explanations/patching.md",)
"""Pages with tables of words: the first column is a word or several in code marks, the others say what it is. The wheel
contains them."""
_FILES: Final = ("plan.json", "report.json", "launch.py")
"""Sections of data.FORMATS."""
WORDS: Final[Mapping[str, str]] = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
"""Words of the output that no table of the pages explains."""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What one code or word means."""

    name: str
    kind: str
    text: str


def explain(asked: str) -> tuple[Explained, ...]:
    """Return what a code or a word means; several if it is used for several things. Raises UsageError for none."""
    explained = tuple(entry for look in _LOOKS for entry in look(asked.strip()))
    if not explained:
        raise UsageError(f"{asked!r} is not a known code or word{_near(asked)}", hint="gemmaspec explain")
    return explained


def is_a_text(asked: str) -> bool:
    """Return whether it may be an error's text rather than a code or word with a typing mistake."""
    return bool(re.search(r"Error\b|Exception\b|: ", asked)) or len(asked.split()) > _WORDS


def names() -> Mapping[str, tuple[str, ...]]:
    """Return what can be asked, by kind."""
    from gemmaspec.check.inspect.meaning import meanings
    from gemmaspec.check.lint.check import CODES
    from gemmaspec.measure.smoke.catalogue import CHECKS

    codes = dict.fromkeys(code for _, code, _ in _exits())
    states = dict.fromkeys(word for words, _ in _rows() for word in words)
    return {
        "exit codes": tuple(codes),
        "words": tuple(WORDS),
        "files of a stack": _FILES,
        "patch states": tuple(states),
        "findings of inspect": tuple(meanings()),
        "failures": tuple(_failures()),
        "smoke checks": tuple(check.id for check in CHECKS),
        "lint codes": tuple(sorted(CODES)),
    }


def _near(asked: str) -> str:
    from gemmaspec.core.profile.foreign_words import nearest

    near = nearest(asked, (name for of_kind in names().values() for name in of_kind))
    if near:
        return f"; did you mean {near}?"
    return ""


def _of_lint(asked: str) -> Iterator[Explained]:
    code = asked.upper()
    if not re.fullmatch(r"GS\d{3}", code):
        return
    from gemmaspec.check.lint.check import CODES

    if rule := CODES.get(code):
        sections = data.LINT_CODES.read_text(encoding="utf-8")
        text = _section(sections, code) or f"**{rule.severity}** {rule.check.__doc__ or ''}"
        yield Explained(name=code, kind="lint code", text=re.sub(r"\*\*(\w+)\*\*", r"\1:", text))


def _of_exit(asked: str) -> Iterator[Explained]:
    number = re.fullmatch(r"(?:exit (?:code )?)?(\d+)", asked)
    meanings = [meaning for _, code, meaning in _exits() if number and code == number[1]]
    if meanings:
        yield Explained(name=f"exit code {number and number[1]}", kind="exit code", text="; ".join(meanings))


def _exits() -> list[tuple[str, str, str]]:
    exits = [(name, code, meaning) for name, code, meaning in _EXIT.findall(errors.__doc__ or "")]
    return [("", "0", "success"), *exits]


def _of_failure(asked: str) -> Iterator[Explained]:
    if text := _failures().get(asked):
        yield Explained(name=asked, kind="failure of a start", text=text)


def _failures() -> Mapping[str, str]:
    from gemmaspec.run.ready.known_failures import KILLED, known_failures

    findings = [failure.finding for failure in (*known_failures(None), KILLED)]
    return {finding.code: f"{finding.message}\n{finding.fix}" for finding in findings}


def _of_page(asked: str) -> Iterator[Explained]:
    for words, text in _rows():
        if asked in words:
            yield Explained(name=asked, kind="state of a patch", text=text)


def _of_inspect(asked: str) -> Iterator[Explained]:
    from gemmaspec.check.inspect.meaning import meanings

    if found := meanings().get(asked):
        about, impact, fix = found
        text = "\n".join(filter(None, (f"{about[0].upper()}{about[1:]}.", impact, fix)))
        yield Explained(name=asked, kind="finding of inspect", text=text)


def _rows() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the rows of the pages' tables: the words of the first column, and the rest in one text."""
    for page in PAGES:
        for line in (data.DOCS / page).read_text(encoding="utf-8").splitlines():
            cells = [_LINK.sub(r"\1", cell.strip()) for cell in line.strip().strip("|").split("|")]
            if line.startswith("| `"):
                words = re.fullmatch(r"`([a-z-]+)`(?:, `([a-z-]+)`)*", cells[0])
            else:
                words = None
            if words and len(cells) > 1:
                yield tuple(re.findall(r"`([a-z-]+)`", cells[0])), "\n".join(cells[1:])


def _of_file(asked: str) -> Iterator[Explained]:
    if asked in _FILES and (text := _section(data.FORMATS.read_text(encoding="utf-8"), re.escape(asked))):
        yield Explained(name=asked, kind="file of a stack", text=text)


def _of_smoke(asked: str) -> Iterator[Explained]:
    if not re.fullmatch(r"[sS]\d{1,2}", asked):
        return
    from gemmaspec.measure.smoke.catalogue import CHECKS

    for check in CHECKS:
        if check.id == asked.upper():
            yield Explained(name=check.id, kind="check of smoke", text=f"{check.name}\n{check.fix}")


def _of_patch(asked: str) -> Iterator[Explained]:
    from gemmaspec.core.patching.patch import Shelf

    patch = Shelf(data.patch_folders()).get(asked)
    if patch:
        text = f"{' '.join(patch.text.hole.split())}\nMore: gemmaspec patch explain {asked}"
        yield Explained(name=asked, kind="patch", text=text)


def _of_word(asked: str) -> Iterator[Explained]:
    if text := WORDS.get(asked.lower()):
        yield Explained(name=asked.lower(), kind="word", text=text)


_LOOKS: Final[tuple[Callable[[str], Iterator[Explained]], ...]] = (
    _of_lint, _of_exit, _of_word, _of_page, _of_inspect, _of_file, _of_failure, _of_smoke, _of_patch,
)  # fmt: skip


def _section(page: str, title: str) -> str | None:
    """Return what follows `title` in a heading, and the text below it, without links."""
    section = re.search(rf"^### {title}: ([^\n]*?)(?: \{{#\w+\}})?\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    if section:
        return _LINK.sub(r"\1", f"{section[1]}\n{section[2].strip()}")
    return None
