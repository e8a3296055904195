"""The releases of vLLM and the sha256 of each wheel: queried once a day, and cached for use offline."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from gemmaspec.core.errors import EnvironmentMissing, UsageError
from gemmaspec.core.files import cache_dir, keep, kept

PROJECT: Final = "vllm"
FRESH_S: Final = 24 * 3600
"""Seconds for which an answer of the package index stays fresh."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The releases that have a wheel; `note` explains an outdated listing."""

    wheels: Mapping[str, str]
    """Release -> sha256 of its wheel, "" if the index states none."""
    note: str = ""

    def releases(self) -> Sequence[str]:
        """Return all releases from the oldest to the newest, including pre-releases."""
        return sorted((name for name in self.wheels if _version(name)), key=Version)


def published(*, refresh: bool = False) -> Listing:
    """Return the listing: from the cache while fresh, else from the package index, else from the cache with a note.

    Raise EnvironmentMissing if the index does not answer and nothing is cached.
    """
    asked, wheels = _kept()
    if wheels and not refresh and 0 <= time.time() - asked < FRESH_S:
        return Listing(wheels=wheels)
    try:
        return Listing(wheels=_ask())
    except EnvironmentMissing as error:
        if not wheels:
            raise
        day = time.strftime("%Y-%m-%d", time.gmtime(asked))
        return Listing(wheels=wheels, note=f"{error.message}; using the releases known on {day}")


def choose(texts: Sequence[str], listing: Listing) -> tuple[Listing, list[str]]:
    """Return the releases that `--release` values mean: 0.26.0, 0.24.0..0.27.1 (both included), ">=0.24,<0.27".

    The index is queried again if the listing lacks one, as on the day of a release. Raise UsageError for other text,
    EnvironmentMissing for a missing release.
    """
    missing = [text for text in texts if not select(text, listing)]
    if missing and not listing.note:
        listing = published(refresh=True)
        missing = [text for text in texts if not select(text, listing)]
    if missing:
        if listing.wheels:
            newest = listing.releases()[-1]
        else:
            newest = "none"
        note = f" ({listing.note})" if listing.note else ""
        raise EnvironmentMissing(
            f"vllm {' or '.join(missing)} has no released wheel; the newest is {newest}{note}",
            hint="pip index versions vllm    # gemmaspec uses pip's settings",
        )
    chosen = {release for text in texts for release in select(text, listing)}
    return listing, sorted(chosen, key=Version)


def select(text: str, listing: Listing) -> list[str]:
    """Return the releases of a listing that one `--release` value means."""
    first, dots, last = text.partition("..")
    try:
        if dots:
            bounds = SpecifierSet(f">={Version(first)},<={Version(last)}")
        elif text.startswith(("<", ">", "=", "!", "~")):
            bounds = SpecifierSet(text)
        else:
            return [release for release in listing.releases() if Version(release) == Version(text)]
    except (InvalidVersion, InvalidSpecifier):
        raise UsageError(
            f"--release {text!r} must be like 0.26.0, 0.24.0..0.27.1 or '>=0.24,<0.27'",
            hint="--tree DIR    # for a checkout",
        ) from None
    return list(bounds.filter(listing.releases()))


def _ask() -> dict[str, str]:
    from gemmaspec.run.index import wheels as index

    wheels = index.released_wheels(PROJECT)
    sums = {version: file.digests.get("sha256", "") for version, file in wheels.items()}
    keep(
        cache_dir() / "releases" / f"{PROJECT}.json",
        json.dumps({"asked": int(time.time()), "wheels": sums}).encode(),
    )
    return sums


def _kept() -> tuple[int, dict[str, str]]:
    """Return the time of the cached answer (seconds since 1970) and its content; (0, empty) without a valid one."""
    try:
        stored = json.loads(kept(cache_dir() / "releases" / f"{PROJECT}.json") or b"{}")
        return int(stored["asked"]), {str(name): str(sha256) for name, sha256 in stored["wheels"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0, {}


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
