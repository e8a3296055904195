"""The files of changes/, and the release that collects them into CHANGELOG.md.

    python tools/changes.py check            # name what is wrong with a file of changes/; exit code 1 if anything is
    python tools/changes.py release 0.4.0    # move them into CHANGELOG.md under that version, and set it in the package
    python tools/changes.py notes 0.4.0      # print that version's section, as the notes of its release

It needs only the standard library, so that a release workflow can run it before anything is installed.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
CHANGELOG: Final = "CHANGELOG.md"
PACKAGE: Final = "gemmaspec/__init__.py"
WIDTH: Final = 118

_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]*\.md")
_SECTION: Final = re.compile(r"^## (\d+\.\d+\.\d+) - \d{4}-\d{2}-\d{2}$", re.MULTILINE)
_PACKAGE_VERSION: Final = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)


class Wrong(Exception):
    """What stands in the way of a release, as a sentence."""


def fragments(root: Path) -> list[Path]:
    """Return the files that describe a change, by name."""
    return sorted(file for file in (root / "changes").glob("*") if file.name != "README.md")


def faults(root: Path) -> list[str]:
    """Return what is wrong with files of changes/, a sentence each."""
    found = []
    for file in fragments(root):
        text = file.read_text(encoding="utf-8")
        where = file.relative_to(root)
        if not _NAME.fullmatch(file.name):
            found.append(f"{where}: name it in lowercase letters, digits and hyphens, and end with .md")
        if not text.strip():
            found.append(f"{where} is empty: write one to three sentences")
        if re.search(r"^#", text, re.MULTILINE):
            found.append(f"{where}: remove the heading; the release sorts the changes")
    return found


def entry(text: str) -> str:
    """Return a fragment as an item of a list, wrapped."""
    words = " ".join(text.split()).removeprefix("- ")
    return textwrap.fill(f"- {words}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def release(root: Path, version: str, day: datetime.date) -> None:
    """Write the section of `version` from the fragments, remove them, and set the package's version.

    Raises:
        Wrong: the version is malformed or already there, or changes/ is empty or has faults. No file is changed then.
    """
    if not _VERSION.fullmatch(version):
        raise Wrong(f"{version}: write a version as three numbers, such as 0.4.0")
    changelog = root / CHANGELOG
    text = changelog.read_text(encoding="utf-8")
    if version in _SECTION.findall(text):
        raise Wrong(f"{CHANGELOG} already has a section of {version}")
    if wrong := faults(root):
        raise Wrong("\n".join(wrong))
    files = fragments(root)
    if not files:
        raise Wrong("changes/ has no file, so there is nothing to release")
    newest = _SECTION.search(text)
    if newest is None:
        raise Wrong(f"{CHANGELOG} has no section such as '## 0.3.0 - 2026-11-28' above which the new one would stand")
    entries = "\n".join(entry(file.read_text(encoding="utf-8")) for file in files)
    section = f"## {version} - {day.isoformat()}\n\n{entries}\n\n"
    changelog.write_text(text[: newest.start()] + section + text[newest.start() :], encoding="utf-8")
    package = root / PACKAGE
    package.write_text(
        _PACKAGE_VERSION.sub(f'__version__ = "{version}"', package.read_text(encoding="utf-8")), encoding="utf-8"
    )
    for file in files:
        file.unlink()


def notes(root: Path, version: str) -> str:
    """Return the text of a version's section, without its heading.

    Raises:
        Wrong: there is no such section, the package has another version, or changes/ has files of no release.
    """
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    found = _PACKAGE_VERSION.search((root / PACKAGE).read_text(encoding="utf-8"))
    if found is None or found[1] != version:
        raise Wrong(f"{PACKAGE} has version {found[1] if found else 'none'}, not {version}")
    if left := fragments(root):
        names = ", ".join(file.name for file in left)
        raise Wrong(f"changes/ still has {names}: run tools/changes.py release, or tag the commit that did")
    headings = list(_SECTION.finditer(text))
    for number, heading in enumerate(headings):
        if heading[1] == version:
            end = headings[number + 1].start() if number + 1 < len(headings) else len(text)
            return text[heading.end() : end].strip() + "\n"
    raise Wrong(f"{CHANGELOG} has no section of {version}")


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Do what the command line says; return the exit code."""
    parser = argparse.ArgumentParser(description="Collect changes/ into CHANGELOG.md.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="name what is wrong with a file of changes/")
    for name, help_text in (("release", "move the files into CHANGELOG.md"), ("notes", "print a version's section")):
        commands.add_parser(name, help=help_text).add_argument("version")
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "release":
            release(root, asked.version, datetime.datetime.now(datetime.UTC).date())
            print(f"{CHANGELOG} and {PACKAGE} have {asked.version}. Next: sort the section, make golden, commit, tag.")
        elif asked.command == "notes":
            print(notes(root, asked.version), end="")
        elif wrong := faults(root):
            raise Wrong("\n".join(wrong))
    except Wrong as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
