"""The vLLM bugs that patches fix, as their folders describe them: the symptoms and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from gemmaspec.core import data, launcher
from gemmaspec.core.errors import PatchError
from gemmaspec.core.patching.patch import PatchText, load_text

_ANY: Final = ".{0,300}"
"""The pattern for … in an error text."""
_BEGIN: Final = r"(?:^|: |, )"
"""Error texts begin a message or follow the name of an exception or pydantic's "Value error, "."""


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One bug of vLLM, as patch.yaml describes it."""

    patch: str
    symptom: str
    """One sentence: what goes wrong without the patch."""
    errors: tuple[str, ...]
    """Exact error texts, in which … matches any text."""
    instead: str | None
    """The workaround without the patch, in the imperative; None if there is no workaround."""
    versions: tuple[str, ...]
    """The releases that the patch is written for."""
    fixed_in: str | None = None
    """The release of vLLM that fixes the bug; None where none is known."""

    def concerns(self, version: str) -> bool:
        """Return whether the patch is written for a release of vLLM."""
        return any(launcher.range_contains(versions, version) for versions in self.versions)

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that matches one of its error texts in a log message."""
        texts = []
        for error in self.errors:
            texts.append(_ANY.join(map(re.escape, error.split("…"))))
        return re.compile(f"{_BEGIN}(?:{'|'.join(texts)})")

    def fix(self, version: str | None = None) -> str | None:
        """Return one sentence on what to do; None if no fix is known for this release of vLLM, or it has the fix."""
        if version and self.fixed_in and launcher.range_contains(f">={self.fixed_in}", version):
            return None
        if self.instead:
            instead = f"{self.instead[0].upper()}{self.instead[1:]}."
        else:
            instead = None
        if version is not None and not self.concerns(version):
            return instead
        return f"Add the patch {self.patch} to patches.required{f', or {self.instead}' if self.instead else ''}."


def bug_of(text: PatchText) -> Bug:
    """Return the bug that a patch.yaml describes."""
    fixed_in = None
    if text.applied_upstream:  # "0.27.0, https://…"
        fixed_in = text.applied_upstream.partition(",")[0]
    return Bug(
        patch=text.id,
        symptom=text.symptom or text.title,
        errors=text.errors,
        instead=text.instead,
        versions=tuple(variant.versions for variant in text.variants),
        fixed_in=fixed_in,
    )


@cache
def bugs(folders: Sequence[Path] | None = None) -> tuple[Bug, ...]:
    """Return the bugs of some folders of patches, by default the shipped one and the user's own.

    Invalid patch folders are skipped, because other commands report them and this list only explains failures.
    """
    by_name: dict[str, Bug] = {}
    for folder in folders or data.patch_folders():
        for file in sorted(folder.glob("*/patch.yaml")):
            try:
                by_name[file.parent.name] = bug_of(load_text(file.parent))
            except PatchError:
                continue
    return tuple(by_name.values())


@cache
def error_text(patch: str, number: int = 0) -> str:
    """Return one of the exact error texts that appear without a shipped patch."""
    return load_text(data.PATCHES / patch).errors[number]
