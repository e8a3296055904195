"""How often functions of the package are called while something runs."""

from __future__ import annotations

import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any

from tests.support.house import PACKAGE


class Calls:
    """Counts the calls of this thread, as `core/profile/load.py:load_profile` → how often."""

    def __init__(self) -> None:
        self._calls: Counter[CodeType] = Counter()

    def __enter__(self) -> Calls:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._calls[frame.f_code] += 1

    def of(self, file: str, function: str) -> int:
        """Return the calls of a function of a file, whose path is one below the package."""
        path = str(PACKAGE / file)
        return sum(
            number for code, number in self._calls.items() if (code.co_filename, code.co_name) == (path, function)
        )
