"""Facts about vLLM by release: what a profile may set, and the consequences."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from packaging.version import InvalidVersion, Version

from gemmaspec.core.errors import UsageError
from gemmaspec.core.releases import drafting, table
from gemmaspec.core.releases import spans as runs
from gemmaspec.core.releases.drafting import Method, transformers_for
from gemmaspec.core.releases.flags import Flag
from gemmaspec.core.releases.model_runner import RunnerRule, runner_for
from gemmaspec.core.releases.table import DATA, FILES, Fact, whole_table

_KINDS: Final = {
    "flag": "flags",
    "speculative key": "speculative",
    "variable": "environment",
    "reasoning parser": "reasoning_parsers",
    "tool call parser": "tool_call_parsers",
    "quantization": "quantizations",
    "KV cache dtype": "kv_cache_dtypes",
    "attention backend": "attention_backends",
    "KV connector": "kv_connectors",
    "EC connector": "ec_connectors",
    "architecture": "architectures",
    "metric": "metrics",
}
"""The names of the kinds, for `spans` and in the table."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One vLLM release. An empty set of values, or `choices` None, means that any text is allowed."""

    vllm: str
    speculative_keys: frozenset[str]
    """Keys of --speculative-config; SpeculativeConfig forbids all others."""
    speculative_values: Mapping[str, frozenset[str]]
    """The allowed values of keys that restrict them (method, rejection_sample_method …)."""
    flags: Mapping[str, Flag]
    """By name, with the leading --; --no- forms are not listed separately."""
    environment: frozenset[str]
    """The variables that vllm/envs.py reads."""
    environment_values: Mapping[str, frozenset[str]]
    environment_forms: Mapping[str, str]
    """What variables take that are converted (values.py)."""
    configs: Mapping[str, Mapping[str, str]]
    """Configuration classes that flags take as JSON: class → key → the form of its value (values.py)."""
    reasoning_parsers: frozenset[str]
    tool_call_parsers: frozenset[str]
    quantizations: frozenset[str]
    deprecated_quantizations: frozenset[str]
    """Those that need --allow-deprecated-quantization."""
    attention_backends: frozenset[str]
    kv_connectors: frozenset[str]
    ec_connectors: frozenset[str]
    architectures: frozenset[str]
    """Gemma 4 architectures that vLLM has a model for."""
    metrics: frozenset[str]
    """As vLLM names them; the exposition adds _total to counters."""
    kv_cache_dtypes: frozenset[str]
    torch: str
    """A version specifier, as all fields below up to `cuda`; empty if unknown."""
    transformers_declared: str
    """The requirement in METADATA."""
    transformers_working: str
    """The releases that run Gemma 4 (drafting.py)."""
    cuda: str
    """CUDA of the released image, as 13.0.3; empty if unknown."""
    methods: tuple[Method, ...]
    """What works for a Gemma 4 target here, and with which patches."""
    runner: RunnerRule
    runner_unsupported: frozenset[str]
    """Everything that makes vLLM fall back from model runner v2 to v1, in vLLM's own words."""

    def methods_named(self, method: str) -> tuple[Method, ...]:
        """Return the ways in which one speculative method works; empty if it does not work."""
        return tuple(row for row in self.methods if row.method == method)


@functools.cache
def releases() -> tuple[str, ...]:
    """Return the releases of the table, oldest first."""
    return tuple(json.loads((DATA / "releases.json").read_text(encoding="utf-8"))["releases"])


def newest() -> str:
    """Return the newest release of the table."""
    return releases()[-1]


@functools.cache
def known_variables() -> frozenset[str]:
    """Return the variables that any release of the table reads."""
    return frozenset(name for kind, name, *_ in whole_table() if kind == "environment")


def asked_release(text: str) -> str:
    """Return a known release in its canonical form (v0.33.0, 0.33 and 0.33.0+cu130 are 0.33.0), or another version.

    Raises UsageError for an invalid version, and for one newer than the known releases.
    """
    try:
        version = Version(text)
    except InvalidVersion:
        raise UsageError(f"{text!r} is not a vLLM release; known releases: {', '.join(releases())}") from None
    public = Version(version.public)
    known = next((release for release in releases() if Version(release) == public), None)
    if known is None and version > Version(newest()):
        raise UsageError(f"vLLM {text} is not known yet; the newest known release is {newest()}")
    return known or str(version)


@functools.cache
def facts_for(vllm: str) -> Facts | None:
    """Return the facts of a release; None for one that the table does not have."""
    if vllm not in releases():
        return None
    rows = rows_of(vllm)
    return facts_from(vllm, rows)


def rows_of(release: str) -> frozenset[Fact]:
    """Return the rows of a release of the table."""
    return table.facts_of(release, releases())


def facts_from(vllm: str, facts: Iterable[Fact]) -> Facts:
    """Return the facts of a release from its rows of the table."""
    below: dict[str, dict[str, list[Fact]]] = {kind: {} for kind in chain.from_iterable(FILES.values())}
    for kind, name, *rest in facts:
        below[kind].setdefault(name, []).append(tuple(rest))
    words = {kind: next(iter(below[kind]), "") for kind in FILES["packages"]}
    flags = {name: _flag(name, rest) for name, rest in below["flags"].items()}
    forms = {name: rest[0][0] for name, rest in below["environment_forms"].items()}
    configs = {}
    for name, keys in below["configs"].items():
        configs[name] = {key[0]: key[1] for key in keys}
    methods = [row for row in drafting.METHODS if drafting.within(vllm, row.versions)]
    unsupported = [text for (text,) in below["runner"].get("unsupported", ())]
    names = {kind: frozenset(below[kind]) for kind in FILES["names"]}
    return Facts(
        vllm=vllm,
        speculative_keys=frozenset(below["speculative"]),
        speculative_values=_values(below["speculative"]),
        flags=flags,
        environment=frozenset(below["environment"]),
        environment_values=_values(below["environment"]),
        environment_forms=forms,
        configs=configs,
        **names,
        torch=words["torch"],
        transformers_declared=words["transformers"],
        transformers_working=transformers_for(vllm) or words["transformers"],
        cuda=words["cuda"],
        methods=tuple(methods),
        runner=runner_for(vllm),
        runner_unsupported=frozenset(unsupported),
    )


def _flag(name: str, rest: Sequence[Fact]) -> Flag:
    """Return a flag from the facts below its name."""
    choices = _last(rest, "choices")
    short = next(iter(_last(rest, "short")), None)
    form = next(iter(_last(rest, "form")), "")
    return Flag(
        name=name,
        choices=choices or None,
        folds=("folds",) in rest,
        negatable=("negatable",) in rest,
        bare=("bare",) in rest,
        paired=("paired",) in rest,
        short=short,
        form=form,
    )


def _values(below: Mapping[str, Sequence[Fact]]) -> dict[str, frozenset[str]]:
    """Return the values of the keys that have a list."""
    listed = {}
    for name, rest in below.items():
        if values := _last(rest, "values"):
            listed[name] = values
    return listed


def _last(rest: Sequence[Fact], kind: str) -> frozenset[str]:
    """Return the names of one kind that end their facts: the choices of a flag."""
    return frozenset(fact[1] for fact in rest if len(fact) > 1 and fact[0] == kind)


def nearest(vllm: str | None) -> str:
    """Return the release whose facts fit a version best: itself, else the newest before it, else the oldest.

    A build between two releases (0.26.1.dev3+gabc) counts as the release before it. None, a version that nobody
    stated, counts as the newest release.
    """
    if vllm is None:
        return newest()
    try:
        wanted = Version(vllm)
    except InvalidVersion:
        return newest()
    older = [release for release in releases() if Version(release) <= wanted]
    if older:
        return older[-1]
    return releases()[0]


def facts_near(vllm: str | None) -> Facts:
    """Return the facts of the release that fits a version best; of the newest for a version that nobody stated."""
    known = nearest(vllm)
    facts = facts_for(known)
    assert facts
    return facts


def spans(kind: str, name: str) -> str:
    """Return where a thing exists, in words for a message: `up to 0.27.1`, `from 0.22.0 on`.

    Kinds: flag, speculative key, variable, reasoning parser, tool call parser, quantization, KV cache dtype,
    attention backend, KV connector, EC connector, architecture, metric. Raise KeyError for any other kind.
    """
    return runs.words(whole_table().get((_KINDS[kind], name), ""), releases())


def knows_method(method: str, vllm: str) -> bool:
    """Return whether a release loads checkpoints of a quantization method; true for a release without facts.

    AutoRound's checkpoints are those of `inc` (quantization/inc.py: override_quantization_method, every release).
    """
    facts = facts_for(vllm)
    return facts is None or {"auto-round": "inc"}.get(method, method) in facts.quantizations


def first_with(architecture: str) -> str | None:
    """Return the first release of the table that has a model for an architecture; None if none has."""
    for release in releases():
        facts = facts_for(release)
        if facts and architecture in facts.architectures:
            return release
    return None
