"""Add new releases of vLLM to gemmaspec/core/releases/data, and print what changed (`make facts`).

    .venv/bin/python tools/facts.py [--all] [RELEASE …]

By default, read every final release from 0.19.0 on that the table lacks. --all reads the others again.
Files of a wheel are read with range requests and parsed, never imported. No wheel contains the CUDA version of the
image, so docker/Dockerfile is read from the sdist, of which this needs about a third.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import sdist
from extraction.extract import cuda_of
from extraction.reading import extract_from
from extraction.rows import changes, facts_in
from extraction.rows import write as files_of
from packaging.version import Version

from gemmaspec.core import launcher
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.files import keep, kept, write_whole
from gemmaspec.core.releases import facts
from gemmaspec.core.releases.table import Fact
from gemmaspec.run.index import wheels
from gemmaspec.run.trees import listing as listing_of
from gemmaspec.run.trees.listing import PROJECT, Listing
from gemmaspec.run.trees.reader import ReleaseReader

DATA = Path(__file__).parent.parent / "gemmaspec" / "core" / "releases" / "data"
FIRST = Version("0.19.0")  # the first release with Gemma 4
BY_HAND = ("runner", "attention")


def main(arguments: list[str], there: dict[str, frozenset[Fact]] | None = None, folder: Path = DATA) -> int:
    """Read the releases, write the table into a folder, and return the exit code.

    `there` is the table so far, by release; the shipped one if none is given.
    """
    try:
        listing = listing_of.published(refresh=True)
        if there is None:
            there = {release: facts.rows_of(release) for release in facts.releases()}
        again = "--all" in arguments
        named = [argument for argument in arguments if argument != "--all"]
        listing, named = listing_of.choose(named, listing)
        wanted = named or [release for release in final(listing.releases()) if again or release not in there]
        for release in wanted:
            there[release] = _read(release, listing)
        ordered = {release: there[release] for release in sorted(there, key=Version)}
        write(ordered, folder)
    except GemmaspecError as error:
        sys.stderr.write(f"facts: {error.message}\n" + (f"  {error.hint}\n" if error.hint else ""))
        return error.exit_code
    _tell(wanted, ordered)
    return 0


def final(published: Iterable[str]) -> list[str]:
    """Return the final releases from FIRST on."""
    finals = (release for release in published if launcher.PUBLISHED_RELEASE.fullmatch(release))
    return [release for release in finals if Version(release) >= FIRST]


def _read(release: str, listing: Listing) -> frozenset[Fact]:
    sys.stderr.write(f"facts: reading vllm {release}\n")
    found = extract_from(ReleaseReader(release, listing))
    return facts_in(replace(found, cuda=cuda_of(sdist_member(release, "docker/Dockerfile")) or ""))


def sdist_member(release: str, name: str) -> str:
    """Return a text file of the sdist, "" where it has none; the archive is read up to there, and the text is kept."""
    source = next((file for file in wheels.release_files(PROJECT, release) if file.package_type == "sdist"), None)
    if source is None:
        return ""
    folder = wheels.cache_folder(source)
    if folder and (content := kept(folder / name)) is not None:
        return content.decode()
    for path, file in sdist.members(source.url):
        if path == name:
            content = file.read()
            if folder:
                keep(folder / name, content)
            return content.decode()
    return ""


def write(by_release: Mapping[str, frozenset[Fact]], folder: Path = DATA) -> None:
    """Write the tables of these releases into a folder."""
    files = {**files_of(by_release), "releases": {"releases": list(by_release)}}
    for name, content in files.items():
        write_whole(folder / f"{name}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _tell(wanted: Sequence[str], by_release: Mapping[str, frozenset[Fact]]) -> None:
    """Print the changes of each release since the one before it."""
    order = list(by_release)
    for release in wanted:
        place = order.index(release)
        if place == 0:
            continue
        found = list(changes(by_release[order[place - 1]], by_release[release]))
        print(f"vllm {release} after {order[place - 1]}: {len(found)} changes")
        for change in found:
            print(f"  {change}")
        if any(change.kind in BY_HAND for change in found):
            print("  check gemmaspec/core/releases/drafting.yaml, whose rules are written by hand")
    if not wanted:
        print(f"no new release: the table goes up to vllm {order[-1]}")
        return
    print("update by hand: gemmaspec/core/releases/drafting.yaml, docs/reference/releases.md")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
