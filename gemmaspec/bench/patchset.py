"""The patches for speed that a cell was measured with: cells of different sets are never mixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def patch_set(row: Row) -> tuple[str, ...] | None:
    """Return the set of a row; None if it is not known. A row of an older gemmaspec, without the key, has none."""
    found = row.get("patches", ())
    return None if found is None else tuple(sorted(map(str, found)))


def said(row: Row) -> str:
    """Return the set for a table."""
    found = patch_set(row)
    return "unknown" if found is None else " + ".join(found) or "none"


def several(rows: Iterable[Row]) -> bool:
    """Return whether rows that draft were measured with different sets, or those that do not."""
    rows = list(rows)
    return any(len({patch_set(row) for row in rows if bool(row["k"]) is drafts}) > 1 for drafts in (True, False))


def nearest(row: Row, among: Sequence[Row]) -> Row | None:
    """Return the row whose set is most like that of another row: the same, else the one with the fewest others."""
    own = set(patch_set(row) or ())
    return min(among, key=lambda one: len(own ^ set(patch_set(one) or ())), default=None)
