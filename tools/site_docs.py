"""Write docs/ as the site has it: with the reference that no file of the repository holds (`make docs`).

    .venv/bin/python tools/site_docs.py .tools/docs

A page says where a part stands with `<!-- on the site: NAME -->`; reference.SITE lists the names. In the repository
the page says which command prints the same.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Final

import reference

_PLACE: Final = re.compile(r"<!-- on the site: ([a-z-]+) -->")


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
        filled = filled_in(text)
        if filled != text:
            page.write_text(filled, encoding="utf-8")


def filled_in(text: str) -> str:
    """Return a page with each part in its place. Raise KeyError for a name that reference.SITE lacks."""
    return _PLACE.sub(lambda place: reference.SITE[place[1]]().strip(), text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
