"""The prompts that bench and tune ask: those that ship, a folder, or a data set of the Hub at a revision."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gemmaspec import data
from gemmaspec.bench.prompts import PromptSet, read_prompts
from gemmaspec.errors import UsageError

OWN: Final = "gemmaspec"
"""The name of the prompts that ship."""


def prompt_set(named: str | None, note: Callable[[str], None]) -> PromptSet:
    """Return a set of prompts: `gemmaspec` or None for those that ship, a folder, or OWNER/NAME@REVISION.

    A folder comes before a data set of the same name. Raises UsageError for a missing folder and for lines that are
    no prompts, EnvironmentMissing for a data set that cannot be fetched.
    """
    if named is None or named == OWN:
        return read_prompts(data.PROMPTS, name=OWN)
    if os.path.exists(named):  # noqa: PTH110 - Path.exists raises for a name that is too long
        return read_prompts(Path(named), name=named)
    from gemmaspec.models.datasets import dataset_ref, fetch_dataset

    ref = dataset_ref(named)
    if ref is None:
        raise UsageError(
            f"--prompts: missing folder {named}",
            hint="a data set of the Hugging Face Hub is named with its revision: --prompts OWNER/NAME@REVISION",
        )
    folder, commit = fetch_dataset(ref, note)
    return read_prompts(folder, name=f"{ref.name}@{commit}")
