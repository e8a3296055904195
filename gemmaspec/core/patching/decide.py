"""What patches would do to a vLLM, decided on the host by the launcher's own code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gemmaspec.core import launcher


@dataclass(frozen=True, kw_only=True)
class FileVerdict:
    """One file; `line` counts from 1, `expected` and `found` explain a conflict; the rest are sha256 digests."""

    path: str
    state: str
    line: int | None
    detail: str
    expected: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, kw_only=True)
class PatchVerdict:
    """One patch on one tree; `state` is one of the launcher's states, `detail` is about the whole patch."""

    patch: str
    state: str
    variant: str | None
    files: tuple[FileVerdict, ...]
    detail: str = ""

    @property
    def fits(self) -> bool:
        """Whether a server could start with this result."""
        return self.state in launcher.FITS


def needed_paths(patches: Iterable[launcher.Patch]) -> frozenset[str]:
    """Return every file that deciding these patches on that vLLM may read.

    Those of all variants, because a file may be that of another release than the version states.
    """
    paths: set[str] = set()
    for patch in patches:
        for variant in patch.variants:
            paths |= {edit.path for edit in variant.files}
        paths |= {rule.path for rule in patch.superseded}
    return frozenset(paths)


def decide(patches: tuple[launcher.Patch, ...], version: str, read: launcher.Read) -> tuple[PatchVerdict, ...]:
    """Return the verdicts on patches that are applied one after the other, as a start applies them."""
    plan = launcher.Plan(1, "", "", (), patches, "")
    results, _ = launcher.decide_plan(plan, version, read)
    return tuple(_verdict(result) for result in results)


def _verdict(result: launcher.PatchResult) -> PatchVerdict:
    return PatchVerdict(
        patch=result.patch.id,
        state=result.state,
        variant=result.variant,
        detail=result.detail,
        files=tuple(_file_verdict(file) for file in result.files),
    )


def _file_verdict(file: launcher.FileResult) -> FileVerdict:
    if file.before is None:
        before = None
    else:
        before = launcher.sha256(file.before)
    if file.after is None:
        after = None
    else:
        after = launcher.sha256(file.after)
    return FileVerdict(
        path=file.path,
        state=file.state,
        line=file.line,
        detail=file.detail,
        expected=file.expected,
        found=file.found,
        before=before,
        after=after,
    )
