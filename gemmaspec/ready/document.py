"""The tables of docs/readiness.md; `python -m gemmaspec.ready.document docs/readiness.md` rewrites them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from gemmaspec.files import write_whole
from gemmaspec.ready.known import KILLED, KNOWN
from gemmaspec.ready.phases import MARKS

_BLOCK: Final = re.compile(r"(<!-- (phases|failures): made from the code -->\n).*?(<!-- end -->)", re.DOTALL)


def phase_table() -> str:
    """Which line begins which phase, and who prints it."""
    rows = [f"| {mark.phase} | {_code(mark.pattern.pattern)} | {mark.source} | {mark.releases} |" for mark in MARKS]
    return "\n".join(["| phase | begins with a line that matches | printed by | vLLM |", "|---|---|---|---|", *rows])


def failure_table() -> str:
    """Every known failure, what it is and what to do."""
    rows = [f"| {known.code} | {known.says} | {known.do} | {known.exit_code} |" for known in (*KNOWN, KILLED)]
    return "\n".join(["| failure | what it is | what to do | exit code |", "|---|---|---|---|", *rows])


def with_tables(text: str) -> str:
    """`text` with its generated blocks made anew."""
    tables = {"phases": phase_table(), "failures": failure_table()}
    return _BLOCK.sub(lambda found: f"{found[1]}\n{tables[found[2]]}\n\n{found[3]}", text)


def _code(pattern: str) -> str:
    return f"`{pattern}`".replace("|", "\\|")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_whole(Path(name), with_tables(Path(name).read_text(encoding="utf-8")))
