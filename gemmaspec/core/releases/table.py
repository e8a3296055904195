"""The facts of all releases as one table: every fact once, with the releases that have it.

A fact is a path: ("flags", "--kv-cache-dtype", "choices", "fp8"). In the files it is a place in nested tables with its
span (spans.py) as the value; a fact with facts below it has
its own span under "in".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gemmaspec.core.releases import spans

Fact = tuple[str, ...]
Nested = dict[str, "str | Nested"]

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


def read(files: Iterable[Nested]) -> dict[Fact, str]:
    """Return every fact of some files with its span."""
    facts: dict[Fact, str] = {}
    for nested in files:
        _collect(nested, (), facts)
    return facts


def facts_of(table: Mapping[Fact, str], release: str, releases: Sequence[str]) -> frozenset[Fact]:
    """Return the facts of one release."""
    having = {span: release in spans.read(span, releases) for span in set(table.values())}
    return frozenset(fact for fact, span in table.items() if having[span])


def last(rest: Sequence[Fact], kind: str) -> frozenset[str]:
    """Return the names of one kind that end their facts: the choices of a flag."""
    return frozenset(fact[1] for fact in rest if len(fact) > 1 and fact[0] == kind)


def _collect(nested: Nested, above: Fact, facts: dict[Fact, str]) -> None:
    for name, below in nested.items():
        if isinstance(below, str):
            facts[above if name == IN else (*above, name)] = below
        else:
            _collect(below, (*above, name), facts)
