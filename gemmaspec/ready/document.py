"""Tables of the documents, made from the code: `python -m gemmaspec.ready.document README.md docs/readiness.md …`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from gemmaspec import data
from gemmaspec.files import write_whole
from gemmaspec.patching.bugs import Bug, bugs
from gemmaspec.ready.known import KILLED, known_failures
from gemmaspec.ready.phases import MARKS

_BLOCK: Final = re.compile(r"(<!-- (phases|failures|bugs): made from the code -->\n).*?(<!-- end -->)", re.DOTALL)


def phase_table() -> str:
    """Which line begins which phase, and who prints it."""
    rows = [f"| {mark.phase} | {_code(mark.pattern.pattern)} | {mark.source} | {mark.releases} |" for mark in MARKS]
    return "\n".join(["| phase | begins with a line that matches | printed by | vLLM |", "|---|---|---|---|", *rows])


def failure_table() -> str:
    """Every known failure, what it is and what to do."""
    rows = [
        f"| {known.code} | {known.message} | {known.fix} | {known.exit_code} |" for known in (*known_failures(), KILLED)
    ]
    return "\n".join(["| failure | what it is | what to do | exit code |", "|---|---|---|---|", *rows])


def bug_table() -> str:
    """Return the table of vLLM's bugs that have a patch: what the log says, what it is, what to do."""
    rows = [f"| {_errors(bug)} | {bug.symptom} | {bug.fix()} |" for bug in bugs((data.PATCHES,))]
    return "\n".join(["| the log says | what it is | what to do |", "|---|---|---|", *rows])


def with_tables(text: str) -> str:
    """`text` with its generated blocks made anew."""
    tables = {"phases": phase_table(), "failures": failure_table(), "bugs": bug_table()}
    return _BLOCK.sub(lambda found: f"{found[1]}\n{tables[found[2]]}\n\n{found[3]}", text)


def _errors(bug: Bug) -> str:
    return " or ".join(f"`` {error} ``" if "`" in error else f"`{error}`" for error in bug.errors)


def _code(pattern: str) -> str:
    return f"`{pattern}`".replace("|", "\\|")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_whole(Path(name), with_tables(Path(name).read_text(encoding="utf-8")))
