"""Where a thing exists, as runs of releases: "0.19.0-0.27.1", or "0.22.0-" when the newest release still has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

_BETWEEN: Final = ", "


def write(has: Iterable[str], releases: Sequence[str]) -> str:
    """Return the runs of the releases that have it. `releases` lists all releases, oldest first."""
    having = set(has)
    runs: list[list[str]] = []
    for before, release in zip([None, *releases], releases, strict=False):
        if release not in having:
            continue
        if runs and runs[-1][-1] == before:
            runs[-1].append(release)
        else:
            runs.append([release])
    return _BETWEEN.join(_run(run, releases[-1]) for run in runs)


def read(text: str, releases: Sequence[str]) -> frozenset[str]:
    """Return the releases in a text from `write`. Raise ValueError for any other text."""
    those: set[str] = set()
    for run in text.split(_BETWEEN) if text else []:
        first, dash, last = run.partition("-")
        begin, end = releases.index(first), releases.index(last or (releases[-1] if dash else first))
        those.update(releases[begin : end + 1])
    return frozenset(those)


def at(choices: Mapping[str, str], release: str, releases: Sequence[str]) -> str | None:
    """Return which of several things a release has, of a text from `write` for each; None for none of them."""
    for name, text in choices.items():
        if release in read(text, releases):
            return name
    return None


def words(text: str, releases: Sequence[str]) -> str:
    """Return the same for a message: `from 0.22.0 on`, `up to 0.27.1`, `in all releases from 0.19.0 on`, `nowhere`."""
    oldest = releases[0]
    if not text:
        return f"in no release from {oldest} to {releases[-1]}"
    if text == f"{oldest}-":
        return f"in all releases from {oldest} on"
    return " and ".join(_words(run, oldest) for run in text.split(_BETWEEN))


def _words(run: str, oldest: str) -> str:
    first, dash, last = run.partition("-")
    if not dash:
        return f"in {first} only"
    if not last:
        return f"from {first} on"
    if first == oldest:
        return f"up to {last}"
    return f"from {first} to {last}"


def _run(run: Sequence[str], newest: str) -> str:
    if run[-1] == newest:
        return f"{run[0]}-"
    if len(run) == 1:
        return run[0]
    return f"{run[0]}-{run[-1]}"
