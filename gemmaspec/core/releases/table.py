"""The facts of all releases as one table: every fact once, with the releases that have it.

A fact is a path: ("flags", "--kv-cache-dtype", "choices", "fp8"). In the files it is a place in nested tables with its
span (spans.py) as the value; a fact with facts below it has
its own span under "in".
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gemmaspec.core.releases import spans

Fact = tuple[str, ...]
Nested = dict[str, "str | Nested"]

DATA: Final = Path(__file__).parent / "data"
"""The folder of the files."""
FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "flags": ("flags",),
    "speculative": ("speculative",),
    "environment": ("environment", "environment_forms"),
    "configs": ("configs",),
    "names": (
        "reasoning_parsers",
        "tool_call_parsers",
        "quantizations",
        "deprecated_quantizations",
        "kv_cache_dtypes",
        "attention_backends",
        "kv_connectors",
        "ec_connectors",
        "architectures",
        "metrics",
    ),
    "packages": ("torch", "transformers", "python", "cuda"),
    "choices": ("runner", "attention"),
}
"""The kinds of facts in each file."""

IN: Final = "in"


@functools.cache
def whole_table() -> Mapping[Fact, str]:
    """Return every fact with its span."""
    facts: dict[Fact, str] = {}
    for name in FILES:
        nested: Nested = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
        _collect(nested, (), facts)
    return facts


def facts_of(release: str, releases: Sequence[str]) -> frozenset[Fact]:
    """Return the facts of one release; `releases` are all of the table, oldest first."""
    table = whole_table()
    having = {span: release in spans.read(span, releases) for span in set(table.values())}
    return frozenset(fact for fact, span in table.items() if having[span])


def _collect(nested: Nested, above: Fact, facts: dict[Fact, str]) -> None:
    for name, below in nested.items():
        if isinstance(below, str):
            facts[above if name == IN else (*above, name)] = below
        else:
            _collect(below, (*above, name), facts)
