"""Delay the import of a package that another one imports at its top but hardly ever uses."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands in sys.modules until something reads an attribute; importlib's LazyLoader loads at the next `import`."""

    def __getattr__(self, attribute: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), attribute)


def on_first_use(name: str) -> None:
    """Make `import NAME` cost nothing until something reads an attribute of the package."""
    sys.modules.setdefault(name, _Later(name))
