"""How often functions of the package are called while something runs, and in which order a reader meets them."""

from __future__ import annotations

import inspect
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

    def walk(self) -> list[str]:
        """Return the files of the package into which one goes who reads each function when it is called first.

        Consecutive functions of one file are one stay. Methods and properties count, lambdas, comprehensions and bodies
        of classes do not.
        """
        stays: list[str] = []
        for code in self._calls:  # in the order of their first calls
            of_package = code.co_filename.startswith(f"{PACKAGE}/")
            if not of_package or code.co_name.startswith("<") or not code.co_flags & inspect.CO_OPTIMIZED:
                continue
            if not stays or stays[-1] != code.co_filename:
                stays.append(code.co_filename)
        return stays
