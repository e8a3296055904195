"""The facts of all releases as one table: every fact once, with the releases that have it.

A fact is a path: ("flags", "--kv-cache-dtype", "choices", "fp8"). In the files it is a place in nested tables with its
span (spans.py) as the value; a fact with facts below it has
its own span under "in".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from gemmaspec.releases import spans
from gemmaspec.releases.attention import Attention
from gemmaspec.releases.extract import Extracted
from gemmaspec.releases.flags import Flag
from gemmaspec.releases.read_runner import RunnerChoice

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
        "architectures",
        "metrics",
    ),
    "packages": ("torch", "transformers", "python", "cuda"),
    "choices": ("runner", "attention"),
}
"""The kinds of facts in each file."""

_IN: Final = "in"
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


def extracted(facts: Iterable[Fact]) -> Extracted:
    """Return the inverse of `facts_in`."""
    below: dict[str, dict[str, list[Fact]]] = {field.name: {} for field in fields(Extracted)}
    for kind, name, *rest in facts:
        below[kind].setdefault(name, []).append(tuple(rest))
    values = {kind: {name: _last(rest, "values") for name, rest in below[kind].items()} for kind in _WITH_VALUES}
    return Extracted(
        flags={name: _to_flag(name, rest) for name, rest in below["flags"].items()},
        speculative=values["speculative"],
        environment=values["environment"],
        environment_forms={name: rest[0][0] for name, rest in below["environment_forms"].items()},
        configs={name: {one[0]: one[1] for one in rest} for name, rest in below["configs"].items()},
        reasoning_parsers=frozenset(below["reasoning_parsers"]),
        tool_call_parsers=frozenset(below["tool_call_parsers"]),
        quantizations=frozenset(below["quantizations"]),
        deprecated_quantizations=frozenset(below["deprecated_quantizations"]),
        kv_cache_dtypes=frozenset(below["kv_cache_dtypes"]),
        attention_backends=frozenset(below["attention_backends"]),
        architectures=frozenset(below["architectures"]),
        metrics=frozenset(below["metrics"]),
        runner=_to_runner(below["runner"]),
        attention=Attention(**{part: _names(below["attention"], part) for part in _ATTENTION}),
        torch=next(iter(below["torch"]), ""),
        transformers=next(iter(below["transformers"]), ""),
        python=next(iter(below["python"]), ""),
        cuda=next(iter(below["cuda"]), ""),
    )


def write(by_release: Mapping[str, frozenset[Fact]]) -> dict[str, Nested]:
    """Return the files, by name, for facts by release, oldest first."""
    releases = list(by_release)
    files: dict[str, Nested] = {name: {} for name in FILES}
    where = {kind: name for name, kinds in FILES.items() for kind in kinds}
    for fact in sorted(set().union(*by_release.values())):
        span = spans.write([release for release in releases if fact in by_release[release]], releases)
        _put(files[where[fact[0]]], fact, span)
    return files


def read(files: Iterable[Nested]) -> dict[Fact, str]:
    """Return every fact of some files with its span."""
    found: dict[Fact, str] = {}
    for nested in files:
        _collect(nested, (), found)
    return found


def facts_of(table: Mapping[Fact, str], release: str, releases: Sequence[str]) -> frozenset[Fact]:
    """Return the facts of one release."""
    having = {span: release in spans.read(span, releases) for span in set(table.values())}
    return frozenset(fact for fact, span in table.items() if having[span])


def _flag(flag: Flag) -> list[Fact]:
    marks: list[Fact] = [(mark,) for mark in _MARKS if getattr(flag, mark)]
    short: list[Fact] = [("short", flag.short)] if flag.short else []
    form: list[Fact] = [("form", flag.form)] if flag.form else []
    return [(), *marks, *short, *form, *(("choices", choice) for choice in flag.choices or ())]


def _to_flag(name: str, rest: Sequence[Fact]) -> Flag:
    choices = _last(rest, "choices")
    return Flag(
        name=name,
        choices=choices or None,
        folds=("folds",) in rest,
        negatable=("negatable",) in rest,
        bare=("bare",) in rest,
        paired=("paired",) in rest,
        short=next(iter(_last(rest, "short")), None),
        form=next(iter(_last(rest, "form")), ""),
    )


def _runner(runner: RunnerChoice) -> list[Fact]:
    facts: list[Fact] = [("chooses",)] if runner.chooses else []
    facts += [("default", runner.default)] if runner.default else []
    facts += [("unsupported", text) for text in runner.unsupported]
    facts += [("methods_refused", method) for method in runner.methods_refused]
    return facts + [("methods_supported", method) for method in runner.methods_supported or ()]


def _to_runner(below: Mapping[str, Sequence[Fact]]) -> RunnerChoice:
    return RunnerChoice(
        chooses="chooses" in below,
        default=next(iter(_names(below, "default")), ""),
        unsupported=_names(below, "unsupported"),
        methods_refused=_names(below, "methods_refused"),
        methods_supported=_names(below, "methods_supported") or None,
    )


def changes(before: frozenset[Fact], after: frozenset[Fact]) -> Iterator[Change]:
    """Yield the changes, sorted by name; parts of a fact that was added or removed as a whole are not listed."""
    for kind, *rest in sorted(before ^ after):
        fact = (kind, *rest)
        mine, other = (after, before) if fact in after else (before, after)
        if not any(fact[:length] in mine - other for length in range(2, len(fact))):
            yield Change(kind=kind, name=" ".join(rest), came=mine is after)


def _attention(attention: Attention) -> list[Fact]:
    return [(part, name) for part in _ATTENTION for name in getattr(attention, part)]


def _names(below: Mapping[str, Sequence[Fact]], kind: str) -> frozenset[str]:
    return frozenset(rest[0] for rest in below.get(kind, ()))


def _last(rest: Sequence[Fact], kind: str) -> frozenset[str]:
    return frozenset(fact[1] for fact in rest if len(fact) > 1 and fact[0] == kind)


def _put(nested: Nested, fact: Fact, span: str) -> None:
    """Put a span in its place. Facts come sorted, so a fact comes before those below it."""
    *above, last = fact
    for name in above:
        below = nested.setdefault(name, {})
        if isinstance(below, str):
            below = nested[name] = {_IN: below}
        nested = below
    nested[last] = span


def _collect(nested: Nested, above: Fact, found: dict[Fact, str]) -> None:
    for name, below in nested.items():
        if isinstance(below, str):
            found[above if name == _IN else (*above, name)] = below
        else:
            _collect(below, (*above, name), found)
