"""What in a result names this machine, so that nobody attaches it unseen. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_PLACE: Final = re.compile(r"(?:^|[=:\s,\"'])(?:~?/|\./|\.\./|state:|file:)[^\s/]|://", re.ASCII)
"""A path, wherever it begins in a value, or an address."""


def places(document: object, *, host: str, key: str = "") -> Iterator[str]:
    """Yield the dotted key of every text with a path, an address or the name of this machine, `host`.

    The name of a model or an image on a public hub is not one of them.
    """
    if isinstance(document, Mapping):
        for name, value in document.items():
            inner = f"{key}.{name}".strip(".")
            if _names(str(name), host):
                yield inner
            yield from places(value, host=host, key=inner)
    elif isinstance(document, str):
        if _names(document, host):
            yield key
    elif isinstance(document, Sequence):
        for index, value in enumerate(document):
            yield from places(value, host=host, key=f"{key}.{index}")


def _names(text: str, host: str) -> bool:
    return bool(_PLACE.search(text)) or (
        len(host) > 1 and re.search(rf"(?<!\w){re.escape(host)}(?!\w)", text) is not None
    )
