"""The head of a model card: YAML between two lines of three hyphens."""

from __future__ import annotations

import re
from typing import Final

from gemmaspec.core.errors import CheckpointError
from gemmaspec.core.strict_yaml import parse

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def base_models(card: str) -> tuple[str, ...]:
    """Return `base_model` of a README.md; empty if its head is missing or unreadable."""
    match = re.match(r"---\r?\n(.*?)\r?\n---", card, re.DOTALL)
    if not match:
        return ()
    try:
        data = parse(match[1], file="README.md", error=CheckpointError).data
    except CheckpointError:
        return ()
    return hub_ids(data.get("base_model") if isinstance(data, dict) else None)


def hub_ids(value: object) -> tuple[str, ...]:
    """Return the Hub ids in one id or a list of them; invalid ones are skipped."""
    many = value if isinstance(value, list) else [value]
    texts = [id_ for id_ in many[:16] if isinstance(id_, str)]
    return tuple(filter(_HUB_ID.fullmatch, texts))
