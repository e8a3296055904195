"""Write docs/ as the site has it: with the reference that no file of the repository holds (`make docs`).

    .venv/bin/python tools/site_docs.py .tools/docs

A page says where a part stands with `<!-- on the site: NAME -->`; reference.SITE lists the names. In the repository
the page says which command prints the same. A lint code in code marks becomes a link to its section, which only the
site has; in the repository it is what `gemmaspec explain` takes.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

import reference

_PLACE: Final = re.compile(r"<!-- on the site: ([a-z-]+) -->")
_LINT_CODE: Final = re.compile(r"(?<!\[)`(GS\d{3})`(?!\])")
_LINT_PAGE: Final = Path("reference/lint.md")


def main(arguments: list[str]) -> int:
    """Write the folder anew; return the exit code."""
    write(Path(arguments[0]))
    return 0


def write(folder: Path) -> None:
    """Copy docs/ to `folder`, replace what stood there, and fill in every part. Raise KeyError for an unknown one."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(reference.ROOT / "docs", folder)
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        filled = linked(filled_in(text), page.relative_to(folder))
        if filled != text:
            page.write_text(filled, encoding="utf-8")


def filled_in(text: str) -> str:
    """Return a page with each part in its place. Raise KeyError for a name that reference.SITE lacks."""
    return _PLACE.sub(lambda place: reference.SITE[place[1]]().strip(), text)


def linked(text: str, page: Path) -> str:
    """Return the text of a page, which lies at `page` below docs/, with each lint code linked to its section."""
    lint = "" if page == _LINT_PAGE else os.path.relpath(_LINT_PAGE, page.parent)
    return _LINT_CODE.sub(lambda code: f"[{code[1]}]({lint}#{code[1].lower()})", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
