"""Names that a new vLLM removed, and which of them the shipped profiles use. Used by release_patches.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extraction.reading import extract_from
from extraction.rows import Change, changes, facts_in
from packaging.version import InvalidVersion, Version

from gemmaspec.check.lint.check import check
from gemmaspec.core.finding import Finding
from gemmaspec.core.patching.patch import Patch
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.releases.facts import Facts, facts_from, nearest, newest, releases, rows_of
from gemmaspec.core.releases.table import Fact
from gemmaspec.run.trees.reader import Reader

NAMES: Final = ("flags", "environment", "speculative", "reasoning_parsers", "tool_call_parsers", "quantizations")


@dataclass(frozen=True, kw_only=True)
class Names:
    """One vLLM, compared with the release before it."""

    before: str
    gone: tuple[Change, ...]
    """Names of the release before, without single values of a flag or key."""
    came: int
    findings: Mapping[str, tuple[Finding, ...]]
    """New findings of lint since the release before, by profile."""


def compare(reader: Reader, profiles: Sequence[Loaded], patches: Mapping[str, Patch]) -> Names:
    """Compare the names. A release of the table is not read again. Raise EnvironmentMissing for an unreadable vLLM."""
    return compare_rows(reader.vllm, _found(reader), profiles, patches)


def compare_rows(vllm: str, new: frozenset[Fact], profiles: Sequence[Loaded], patches: Mapping[str, Patch]) -> Names:
    """Compare the names of a vLLM whose facts are `new`."""
    before = _before(vllm)
    old = rows_of(before)
    facts = facts_from(before, old), facts_from(_version(vllm), new)
    found = [one for one in changes(old, new) if one.kind in NAMES]
    return Names(
        before=before,
        gone=tuple(one for one in found if not one.came and " " not in one.name),
        came=sum(one.came and " " not in one.name for one in found),
        findings={loaded.profile.name: _new(loaded, *facts, patches) for loaded in profiles},
    )


def _found(reader: Reader) -> frozenset[Fact]:
    if reader.place.kind == "release" and reader.vllm in releases():
        return rows_of(reader.vllm)
    return facts_in(extract_from(reader))


def _version(vllm: str) -> str:
    """Return a version for the rules; a build without a version counts as the newest release."""
    try:
        return str(Version(vllm))
    except InvalidVersion:
        return newest()


def _before(vllm: str) -> str:
    """Return the last release of the table before a vLLM, or the oldest one."""
    release = nearest(vllm)
    if vllm != release or release == releases()[0]:
        return release
    return max((one for one in releases() if Version(one) < Version(release)), key=Version)


def _new(loaded: Loaded, old: Facts, new: Facts, patches: Mapping[str, Patch]) -> tuple[Finding, ...]:
    """Return the findings of the new vLLM that the old one does not have, without notes."""
    known = {(one.code, one.key) for one in check(loaded, patches=patches, asked=old, notes=False)}
    found = check(loaded, patches=patches, asked=new, notes=False)
    return tuple(one for one in found if (one.code, one.key) not in known)
