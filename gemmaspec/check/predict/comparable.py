"""Which measured rows are comparable with a server: those of its own kind, and those that a measured factor converts.

A row of another graph mode, backend or release never is. One of another image setting, KV format or set of patches
is where the store has cells that differ in nothing else: their mean is the factor, and a note names it.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gemmaspec.core.rows import GraphMode, Graphs, Parallel, Row

_OWN_KERNELS: Final = (None, "humming")
"""What quantized matrices run in where nobody set a kernel: vLLM 0.32.0 prefers Humming on compute capability 9.0."""
_LEAST: Final = 2
"""Pairs of cells from which a factor is taken."""
_COMPILE: Final = "compile"
GREEDY: Final = "greedy"
"""How comparable rows were sampled; other samplers take time of their own."""
_DRAFTS_MORE: Final = {"triton-3d-longer-block": 8}
"""Patches that act from a k on: that one changes verification of more than 8 tokens of a request, and nothing else."""
_CROWDS: Final = {"triton-group-geometry": 8}
"""Patches that act without a draft above so many requests: with 16 KV heads vLLM splits the cache of 8 (128 // 16)."""
_EACH_STEP: Final = frozenset({"gemma4-fused-norms", "humming-launch-params"})
"""Patches that make a step shorter whatever the length of the prompt: a factor of one length serves another."""
_DECODING: Final = ("step_ms", "tokens_per_second")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What decides how fast a profile's server is, as it will resolve. None: not known, so no row counts."""

    vllm: str | None
    backend: str | None
    images: bool
    kv_cache: str | None
    linear_kernel: str | None
    """What the profile sets; None for vLLM's own choice."""
    compiled: Graphs
    alone: GraphMode | None
    """CUDA graphs of the target without a draft."""
    drafting: tuple[GraphMode | None, GraphMode | None]
    """CUDA graphs of the target and of the draft with one."""
    patches: frozenset[str]
    """The patches for speed that it takes."""
    idle: frozenset[str]
    """Of all patches those that do nothing without speculation."""
    parallel: Parallel = field(default_factory=Parallel)
    """The GPUs that share its work."""

    def graphs(self, row: Row) -> tuple[GraphMode | None, GraphMode | None]:
        """Return the graph modes that a row of this server has."""
        if row.k:
            return self.drafting
        return (self.alone, None)


@dataclass(frozen=True, kw_only=True)
class Comparable:
    """The rows that are comparable with a server, converted to what it would have measured."""

    rows: tuple[Row, ...]
    own: frozenset[tuple[int, int, int]] = frozenset()
    """k, requests and context of those that were measured on such a server, without a factor but those of patches."""
    factors: tuple[str, ...] = ()
    """The measured factors that made some of them, each in words."""
    measured: tuple[Row, ...] = ()
    """The rows as they were measured."""
    missing: Mapping[bool, str] = field(default_factory=dict)
    """With a draft (True) and without: why no row is comparable, where none is."""


def comparable_rows(rows: Sequence[Row], kind: Kind, like: Sequence[Row] = ()) -> Comparable:
    """Return the rows that are comparable with a server, of all that were measured on its machine with its target.

    `like`: rows of other machines with such GPUs, which give factors of patches alone.
    """
    both: list[tuple[Row, Row]] = []
    factors: dict[str, None] = {}
    missing: dict[bool, str] = {}
    measured: set[tuple[int, int, int]] = set()
    for drafts in (False, True):
        alike, why = _alike([row for row in rows if bool(row.k) is drafts], kind)
        apart = [row for row in alike if any(_apart(row, kind))]
        own = [row for row in alike if row not in apart]
        pairs = []
        for row in own:
            if converted := _converted(row, kind, rows, factors):
                pairs.append((row, converted))
        # rows with other patches count only at loads of which no row has the server's own
        covered = {_load(row) for row, _ in pairs}
        others = _fewest_patches_apart([row for row in apart if _load(row) not in covered], kind)
        for row in others:
            if converted := _converted(row, kind, (*rows, *like), factors):
                pairs.append((row, converted))
        # a factor of images, KV format or compilation makes a figure that was not measured
        measured |= {_load(row) for row, converted in pairs if converted.step == row.step or row in apart}
        both += pairs
        if not pairs:
            missing[drafts] = why or _unconverted(own, kind)
    were, are = zip(*both, strict=True) if both else ((), ())
    return Comparable(rows=are, own=frozenset(measured), factors=tuple(factors), measured=were, missing=missing)


def _fewest_patches_apart(rows: Sequence[Row], kind: Kind) -> list[Row]:
    """Return of each load the rows whose patches differ least from the server's."""
    distances = [len(_patches(row, kind)) for row in rows]
    least: dict[tuple[int, int, int], int] = {}
    for row, distance in zip(rows, distances, strict=True):
        least[_load(row)] = min(distance, least.get(_load(row), distance))
    return [row for row, distance in zip(rows, distances, strict=True) if distance == least[_load(row)]]


def _alike(rows: Sequence[Row], kind: Kind) -> tuple[list[Row], str]:
    """Return the rows that are alike in all that no factor converts; where none is, what the last of them lack."""
    alike = list(rows)
    if not alike:
        return [], "nothing was measured"
    for what, worded, fits in _parts(kind):
        kept = [row for row in alike if fits(row)]
        if not kept:
            others = sorted({str(worded(row)) for row in alike})
            return [], f"{what}, and the cells are of {' or '.join(others)}"
        alike = kept
    apart = [_apart(row, kind) for row in alike]
    return alike, "" if any(not more | less for more, less in apart) else _nearest(apart)


def _parts(kind: Kind) -> Iterator[tuple[str, Any, Any]]:
    """Yield each property that has to be the same: the server's in words, a row's, and whether they agree."""
    of_matrices = (kind.linear_kernel,) if kind.linear_kernel else _OWN_KERNELS
    yield (
        f"it runs on {kind.parallel}",
        lambda row: str(row.parallel).replace("one GPU", "one"),
        lambda row: row.parallel_as(kind.parallel),
    )
    yield f"its vLLM is {kind.vllm or 'not known'}", lambda row: row.vllm, lambda row: row.vllm == kind.vllm
    backend = kind.backend or "not known"
    yield (
        f"its attention backend is {backend}",
        lambda row: row.attention_backend or "one that was not recorded",
        lambda row: kind.backend is not None and row.attention_backend == kind.backend,
    )
    yield (
        f"its CUDA graphs are {_modes(kind.drafting)} with a draft and {kind.alone} without",
        _graphs_of,
        lambda row: row.graphs is not None and (row.graphs, row.head_graphs) == kind.graphs(row),
    )
    yield (
        f"its matrices run in {kind.linear_kernel or 'what vLLM chooses'}",
        lambda row: row.linear_kernel or "a kernel that was not recorded",
        lambda row: row.linear_kernel in of_matrices,
    )
    yield "its patches for speed are known", lambda _: "unknown ones", lambda row: row.patches is not None
    yield "its answers are greedy", lambda row: row.sampling, lambda row: row.sampling in (None, GREEDY)
    yield (
        f"it is {kind.compiled}",
        lambda row: row.setting.graphs,
        lambda row: kind.graphs(row)[0] == "full" or row.setting.graphs == kind.compiled,
    )


def _graphs_of(row: Row) -> str | None:
    """Return the CUDA graphs of a row in words; None where they were not recorded."""
    if row.k:
        return _modes((row.graphs, row.head_graphs))
    return row.graphs


def _apart(row: Row, kind: Kind) -> tuple[frozenset[str], frozenset[str]]:
    """Return the patches that act in a row's cell and are not the server's, and the server's that the row lacks."""
    taken, resting = frozenset(row.patches or ()), _resting(row, kind)
    return taken - kind.patches - resting, kind.patches - taken - resting


def _nearest(apart: Sequence[tuple[frozenset[str], frozenset[str]]]) -> str:
    """Return in words the smallest of these differences from the server's patches."""
    more, less = min(apart, key=lambda sets: (len(sets[0] | sets[1]), *map(sorted, sets)))
    both = (("with", more), ("without", less))
    said = " and ".join(f"{word} {', '.join(sorted(names))}" for word, names in both if names)
    return f"the nearest cells were measured {said}"


def _load(row: Row) -> tuple[int, int, int]:
    return row.k, row.concurrency, row.context


def _resting(row: Row, kind: Kind) -> frozenset[str]:
    """Return the patches that change nothing in a row's cell."""
    if row.k:
        return frozenset(id_ for id_, least in _DRAFTS_MORE.items() if row.k < least)
    return kind.idle | {id_ for id_, most in _CROWDS.items() if row.concurrency <= most}


def _modes(modes: tuple[GraphMode | None, GraphMode | None]) -> str:
    return f"{modes[0]} (draft: {modes[1]})"


def _converted(row: Row, kind: Kind, rows: Sequence[Row], factors: dict[str, None]) -> Row | None:
    """Return a row as if measured on the server; None where no measured factor makes it one."""
    value, compiled, said = 1.0, row.compile, []
    for key, wanted in (*_convertible(kind), *_patches(row, kind)):
        has = _of(row, key, kind)
        if has == wanted:
            continue
        if has is not None:
            requests, ratios = _ratios(rows, key, has, wanted, row, kind)
        else:
            requests, ratios = (0, [])
        if len(ratios) < (1 if key in _EACH_STEP else _LEAST):
            if key == _COMPILE:  # predict has a factor of its own for that, from measurements of several servers
                continue
            return None
        factor = math.exp(statistics.mean(ratios))
        value *= factor
        if key == _COMPILE:
            if wanted == "compiled":
                compiled = "default"
            else:
                compiled = "none"
        drafted = f"{'with' if row.k else 'without'} a draft"
        if key in _EACH_STEP:
            drafted += f" and {requests} request{'s'[: requests > 1]}"
        pairs = f"{len(ratios)} measured pair{'s'[: len(ratios) > 1]}"
        turned = f"{'with' if wanted else 'without'} {key}"
        if key in _EACH_STEP:
            change = turned
        else:
            change = f"{_words(key, has)} to {_words(key, wanted)}"
        said.append(f"{change}: a step takes {factor:.3f} times as long {drafted} ({pairs})")
    factors |= dict.fromkeys(said)
    timed = {"step_ms": row.step_ms and row.step_ms * value, "tokens_per_second": row.tokens_per_second / value}
    own = {"images": kind.images, "kv_cache_dtype": kind.kv_cache, "linear_kernel": kind.linear_kernel}
    patches = tuple(sorted(kind.patches))
    return Row.model_construct(**{**dict(row), **own, **timed, "compile": compiled, "patches": patches})


def _convertible(kind: Kind) -> tuple[tuple[str, Any], ...]:
    return ("images", kind.images), ("kv_cache_dtype", kind.kv_cache), (_COMPILE, kind.compiled)


def _patches(row: Row, kind: Kind) -> list[tuple[str, bool]]:
    """Return the patches that a row and the server do not share, and whether the server has each."""
    return [(patch, patch in kind.patches) for patch in sorted(frozenset().union(*_apart(row, kind)))]


def _of(row: Row, key: str, kind: Kind) -> object:
    if key in _EACH_STEP:
        return key in frozenset(row.patches or ()) - _resting(row, kind)
    if key == _COMPILE:
        return row.setting.graphs
    return getattr(row, key, None)


def _words(key: str, value: object) -> str:
    if key == _COMPILE:
        return f"a server that is {value}"
    if key == "images":
        if value is None:
            return "images that were not recorded"
        if value:
            return "images on"
        return "images off"
    return f"a KV cache in {value or 'an unknown format'}"


def _unconverted(rows: Sequence[Row], kind: Kind) -> str:
    """Return what the rows differ in, where no pairs of cells give a factor."""
    keys = [(key, wanted) for key, wanted in _convertible(kind) if key != _COMPILE]
    apart = [(key, wanted) for key, wanted in keys if all(_of(row, key, kind) != wanted for row in rows)] or keys
    has = " and ".join(_words(key, wanted) for key, wanted in apart)
    others = set()
    for row in rows:
        values = [(key, _of(row, key, kind), wanted) for key, wanted in apart]
        others.add(" and ".join(_words(key, value) for key, value, wanted in values if value != wanted))
    said = f"it has {has}, and the cells have {' or '.join(sorted(others))}"
    return f"{said}; no cells that differ in that alone give a factor"


def _ratios(
    rows: Sequence[Row], key: str, has: object, wanted: object, like: Row, kind: Kind
) -> tuple[int, list[float]]:
    """Return logarithms of a step with the wanted value over one with the other, of cells that differ in it alone.

    First comes their number of requests: of a patch the one nearest to the row's, otherwise 0 for all of them."""
    sides: dict[tuple[Any, ...], dict[object, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        value = _of(row, key, kind)
        same = bool(row.k) is bool(like.k) and value in (has, wanted) and row.answer_tokens is None
        if same and row.patches is not None:
            acting = frozenset(row.patches) - _resting(row, kind) - {key}
            group = row.concurrency if key in _EACH_STEP else 0
            sides[group, acting, *_but(row, key)][value].append(math.log(row.step))
    pairs = {}
    for at, side in sides.items():
        if {has, wanted} <= side.keys():
            pairs[at] = statistics.mean(side[wanted]) - statistics.mean(side[has])
    nearest = min((at[0] for at in pairs), key=lambda group: abs(group - like.concurrency), default=0)
    return nearest, [ratio for at, ratio in pairs.items() if at[0] == nearest]


def _but(row: Row, key: str) -> tuple[Any, ...]:
    """Return all that makes a row's cell but for one property, and patches."""
    left_out = {*_DECODING, "ttft_ms", "acceptance", "acceptance_by", "answer_tokens", "patches", key}
    left_out |= set(row.parallel.keys())
    return (row.parallel, *(value for name, value in row if name not in left_out))
