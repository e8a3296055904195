"""What was extracted from a release as facts of the table (gemmaspec/core/releases/table.py), and the table's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from extraction.attention import Attention
from extraction.extract import Extracted
from extraction.runner import RunnerChoice
from gemmaspec.core.releases import spans
from gemmaspec.core.releases.flags import Flag
from gemmaspec.core.releases.table import FILES, IN, Fact, Nested

_MARKS: Final = ("folds", "negatable", "bare", "paired")
_WITH_VALUES: Final = ("speculative", "environment")
_ATTENTION: Final = ("falls_to", "flash_attention", "families")
_TEXTS: Final = ("torch", "transformers", "python", "cuda")


@dataclass(frozen=True, kw_only=True)
class Change:
    """A fact that only one of two vLLM releases has."""

    kind: str
    """The table's name for it: flags, environment, speculative …"""
    name: str
    """Its name and the path below: `--kv-cache-dtype choices fp8`."""
    came: bool

    def __str__(self) -> str:
        return f"{'+' if self.came else '-'} {self.kind} {self.name}"


def facts_in(found: Extracted) -> frozenset[Fact]:
    """Return the extracted values as facts."""
    facts: set[Fact] = set()
    for flag in found.flags.values():
        facts |= {("flags", flag.name, *rest) for rest in _flag(flag)}
    for kind in _WITH_VALUES:
        for name, values in getattr(found, kind).items():
            facts |= {(kind, name), *((kind, name, "values", value) for value in values)}
    for kind in FILES["names"]:
        facts |= {(kind, name) for name in getattr(found, kind)}
    facts |= {(kind, text) for kind in _TEXTS if (text := getattr(found, kind))}
    facts |= {("environment_forms", name, form) for name, form in found.environment_forms.items()}
    facts |= {("configs", name, key, form) for name, keys in found.configs.items() for key, form in keys.items()}
    facts |= {("runner", *rest) for rest in _runner(found.runner)}
    return frozenset(facts | {("attention", *rest) for rest in _attention(found.attention)})


def write(by_release: Mapping[str, frozenset[Fact]]) -> dict[str, Nested]:
    """Return the files, by name, for facts by release, oldest first."""
    releases = list(by_release)
    files: dict[str, Nested] = {name: {} for name in FILES}
    where = {kind: name for name, kinds in FILES.items() for kind in kinds}
    for fact in sorted(set().union(*by_release.values())):
        span = spans.write([release for release in releases if fact in by_release[release]], releases)
        _put(files[where[fact[0]]], fact, span)
    return files


def _flag(flag: Flag) -> list[Fact]:
    marks: list[Fact] = [(mark,) for mark in _MARKS if getattr(flag, mark)]
    short: list[Fact] = [("short", flag.short)] if flag.short else []
    form: list[Fact] = [("form", flag.form)] if flag.form else []
    return [(), *marks, *short, *form, *(("choices", choice) for choice in flag.choices or ())]


def _runner(runner: RunnerChoice) -> list[Fact]:
    facts: list[Fact] = [("chooses",)] if runner.chooses else []
    facts += [("default", runner.default)] if runner.default else []
    facts += [("unsupported", text) for text in runner.unsupported]
    facts += [("methods_refused", method) for method in runner.methods_refused]
    return facts + [("methods_supported", method) for method in runner.methods_supported or ()]


def changes(before: frozenset[Fact], after: frozenset[Fact]) -> Iterator[Change]:
    """Yield the changes, sorted by name; parts of a fact that was added or removed as a whole are not listed."""
    for kind, *rest in sorted(before ^ after):
        fact = (kind, *rest)
        mine, other = (after, before) if fact in after else (before, after)
        if not any(fact[:length] in mine - other for length in range(2, len(fact))):
            yield Change(kind=kind, name=" ".join(rest), came=mine is after)


def _attention(attention: Attention) -> list[Fact]:
    return [(part, name) for part in _ATTENTION for name in getattr(attention, part)]


def _put(nested: Nested, fact: Fact, span: str) -> None:
    """Put a span in its place. Facts come sorted, so a fact comes before those below it."""
    *above, last = fact
    for name in above:
        below = nested.setdefault(name, {})
        if isinstance(below, str):
            below = nested[name] = {IN: below}
        nested = below
    nested[last] = span
