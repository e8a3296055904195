"""What patches would do to a vLLM, decided on the host by the launcher's own code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gemmaspec import launcher
from gemmaspec.errors import PatchError
from gemmaspec.patching.patch import Patch
from gemmaspec.patching.plan import patch_entry


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
class Verdict:
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


def launcher_patch(patch: Patch) -> launcher.Patch:
    """Return a patch as the launcher reads it from a plan, to be judged by its lines alone, whatever it is for."""
    compiled: launcher.Patch = launcher.decode(launcher.Patch, patch_entry(patch, required=False), patch.id)
    return dataclasses.replace(compiled, required=True, purpose="defect")


def chain(patch: Patch, patches: Mapping[str, Patch]) -> tuple[launcher.Patch, ...]:
    """Return the patches that it needs, in order, then the patch.

    Raise PatchError if one is missing or needs it too.
    """
    done: dict[str, launcher.Patch] = {}
    _collect(patch, patches, done, ())
    return tuple(done.values())


def _collect(
    patch: Patch, patches: Mapping[str, Patch], done: dict[str, launcher.Patch], above: tuple[str, ...]
) -> None:
    if patch.id in above:
        raise PatchError(f"patch {patch.id} needs itself, through {' and '.join(above)}")
    for need in patch.text.needs:
        if need not in patches:
            raise PatchError(f"{patch.folder / 'patch.yaml'}: needs: unknown patch {need}")
        if need not in done:
            _collect(patches[need], patches, done, (*above, patch.id))
    done[patch.id] = launcher_patch(patch)


def needed_paths(patches: Iterable[launcher.Patch]) -> frozenset[str]:
    """Return every file that deciding these patches on that vLLM may read.

    Those of all variants, because a file may be that of another release than the version states.
    """
    paths: set[str] = set()
    for patch in patches:
        paths |= {edit.path for variant in patch.variants for edit in variant.files}
        paths |= {rule.path for rule in patch.superseded}
    return frozenset(paths)


def decide(patches: tuple[launcher.Patch, ...], version: str, read: launcher.Read) -> tuple[Verdict, ...]:
    """Return the verdicts on patches that are applied one after the other, as a start applies them."""
    plan = launcher.Plan(1, "", "", (), patches, "")
    results, _ = launcher.decide_plan(plan, version, read)
    return tuple(_verdict(result) for result in results)


def _verdict(result: launcher.PatchResult) -> Verdict:
    return Verdict(
        patch=result.patch.id,
        state=result.state,
        variant=result.variant,
        detail=result.detail,
        files=tuple(
            FileVerdict(
                path=file.path,
                state=file.state,
                line=file.line,
                detail=file.detail,
                expected=file.expected,
                found=file.found,
                before=None if file.before is None else launcher.sha256(file.before),
                after=None if file.after is None else launcher.sha256(file.after),
            )
            for file in result.files
        ),
    )
