"""evidence.json: the measured cells that show what a speed patch buys, with their provenance.

A row has the form in which `bench` writes it. Two rows of one run that differ in this patch only are a pair.
"""

from __future__ import annotations

import datetime
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from gemmaspec.core import launcher
from gemmaspec.core.errors import PatchError
from gemmaspec.core.rows import Row
from gemmaspec.core.sentences import sentence

EVIDENCE_FILE: Final = "evidence.json"
MAX_BYTES: Final = 8 * 1024 * 1024
FAMILIES: Final = {
    "ampere": ("8.0", "8.6"),
    "ada": ("8.9",),
    "hopper": ("9.0",),
    "blackwell": ("10.0", "10.3"),
    "blackwell-rtx": ("12.0",),
    "gb10": ("12.1",),
}
"""Families of GPUs that share kernels and their tables, by compute capability (NVIDIA's list of CUDA GPUs)."""
_GPUS: Final = {
    "H100|H200|H800|GH200": "hopper",
    "B100|B200|GB200|B300|GB300": "blackwell",
    "GB10": "gb10",
    "RTX 50|RTX PRO": "blackwell-rtx",
    "L4|L40S?|RTX 40|Ada": "ada",
    "A100|A30|A10G?|A40|A6000|RTX 30": "ampere",
}
"""Words in the name of a GPU, as nvidia-smi has it, and its family."""
LEAST_GAIN: Final = 1.03
"""The gain at which a pair shows something: the same cell measured again differs by up to 3 %."""

Words = Annotated[str, Field(min_length=1, max_length=2000)]
MOST_LOSS: Final = 0.97
"""What a pair may lose where a patch is claimed to pay."""
LEAST_WAIT_MS: Final = 350.0
"""Milliseconds to a first token that are compared: after 256 tokens those of eight requests moved from 245 to 341."""
_NUMBERS: Final = frozenset(
    ("k", "concurrency", "context", "step_ms", "ttft_ms", "tokens_per_second", "answer_tokens", "acceptance")
)

Seconds = Annotated[FiniteFloat, Field(gt=0, le=1e7)]


class Written(BaseModel):
    """Base of what a person wrote: unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, defer_build=True, str_strip_whitespace=True, str_min_length=1
    )


class Claim(Written):
    """Where a speed patch was shown to pay: releases, GPUs, methods (`none`: no draft) and backends that ran."""

    versions: str
    gpus: tuple[Literal[tuple(FAMILIES)], ...] = Field(min_length=1)  # type: ignore[valid-type]
    methods: tuple[str, ...] = Field(min_length=1)
    backends: tuple[Annotated[str, Field(pattern=r"^[A-Z0-9_]+$")], ...] = Field(min_length=1)
    from_tokens: int = Field(default=0, ge=0)
    """The length of a prompt from which it pays; shorter ones may be slower."""


class EvidenceRow(Row):
    """A row that can be compared with another: what a pair shares must be there."""

    step_ms: Seconds
    compile: str | bool | None
    vllm: Annotated[str, Field(pattern=rf"^(?:{launcher.PUBLISHED_RELEASE.pattern})$")]
    attention_backend: Words
    patches: tuple[Words, ...]
    """The speed patches that were in."""

    def but(self, patch: str) -> tuple[Any, ...]:
        """Return everything that two rows of a pair share. Graphs are left out: a patch may be what keeps them."""
        others = frozenset(self.patches) - {patch}
        cell = (self.method, self.k, self.concurrency, self.context, self.sampling)
        server = (self.compile, self.vllm, self.attention_backend, self.images, self.kv_cache_dtype, self.linear_kernel)
        return (*cell, *server, self.parallel, others)


class EvidenceRun(BaseModel):
    """Cells of one machine on one day."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    machine: Words
    gpu: Words
    """As nvidia-smi names it."""
    capability: Annotated[str, Field(pattern=r"^\d{1,2}\.\d$")]
    """Compute capability."""
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    source: Words
    note: str = Field(default="", max_length=4000)
    targets: tuple[Words, ...] = ()
    """Patterns of target models, in lowercase: those of the shapes that were measured."""
    by_hand: tuple[Words, ...] = ()
    """What was set by hand, as `--set` has it."""
    same: dict[str, Any] = Field(default_factory=dict)
    """What all rows share."""
    rows: tuple[EvidenceRow, ...] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _spread(cls, given: Any) -> Any:
        """Return the run with what its rows share in each of them."""
        if not isinstance(given, Mapping) or not isinstance(given.get("same", {}), Mapping):
            return given
        same, rows = given.get("same", {}), given.get("rows")
        if not isinstance(rows, list):
            return given
        spread = []
        for row in rows:
            spread.append({**same, **row} if isinstance(row, Mapping) else row)
        return {**given, "rows": spread}


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, populate_by_name=True)

    schema_: Annotated[Literal[1], Field(alias="schema")]
    runs: tuple[EvidenceRun, ...] = Field(min_length=1)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One cell with and without a patch, in the same run."""

    run: EvidenceRun
    without: EvidenceRow
    having: EvidenceRow

    @property
    def step_gain(self) -> float:
        """How many times faster a step is with the patch."""
        return self.without.step_ms / self.having.step_ms

    @property
    def first_token_gain(self) -> float | None:
        """How many times earlier the first token comes; None if that was not measured, or is too short to compare."""
        before, after = self.without.ttft_ms, self.having.ttft_ms
        if before and after and max(before, after) >= LEAST_WAIT_MS:
            return before / after
        return None

    @property
    def gain(self) -> float:
        """The larger of both, because a patch is for steps or for prompts."""
        return max(self.step_gain, self.first_token_gain or 0.0)


def family_of(capability: str | None) -> str | None:
    """Return the family of GPUs with a compute capability; None for an unknown one."""
    return next((name for name, members in FAMILIES.items() if capability in members), None)


def parse_evidence(file: Path, content: bytes | None) -> tuple[EvidenceRun, ...]:
    """Return the measured runs that a file has; none without a file. Raise PatchError if it is invalid."""
    if content is None:
        return ()
    try:
        runs = _File.model_validate(json.loads(content, object_pairs_hook=_object)).runs
        _check_runs(runs)
        return runs
    except ValidationError as error:
        problems = []
        for fault in error.errors()[:10]:
            where = ".".join(map(str, fault["loc"])) or "the file"
            problems.append(f"{file}: {where}: {sentence(fault)}")
        raise PatchError("\n".join(problems)) from None
    except json.JSONDecodeError:
        raise PatchError(f"{file}: not JSON") from None
    except (ValueError, RecursionError) as error:
        raise PatchError(f"{file}: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of the file. Raise ValueError for a key that is there twice, or a number that is text."""
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = ", ".join(key for key, _ in pairs)
        raise ValueError(f"a key is there twice in {keys[:200]}")
    for key in members.keys() & _NUMBERS:
        if isinstance(members[key], list):
            values = members[key]
        else:
            values = [members[key]]
        if any(isinstance(value, (str, bool)) for value in values):
            raise ValueError(f"{key}: is not a number")
    return members


def _check_runs(runs: Sequence[EvidenceRun]) -> None:
    """Raise ValueError for a day that does not exist or has not come, and for a GPU that has another capability."""
    for index, run in enumerate(runs):
        try:
            day = datetime.date.fromisoformat(run.date)
        except ValueError:
            raise ValueError(f"runs.{index}.date: {run.date} does not exist") from None
        if day > datetime.datetime.now(tz=datetime.UTC).date() + datetime.timedelta(days=1):
            raise ValueError(f"runs.{index}.date: {run.date} has not come yet")
        named = set()
        for words, family in _GPUS.items():
            if re.search(rf"\b(?:{words})", run.gpu):
                named.add(family)
        if named and family_of(run.capability) not in named:
            raise ValueError(f"runs.{index}: {run.gpu} does not have the compute capability {run.capability}")


def pairs_of(patch: str, runs: Sequence[EvidenceRun]) -> tuple[Pair, ...]:
    """Return every pair of cells; of cells that a run measured several times, the one in the middle."""
    paired = []
    for run in runs:
        sides: dict[tuple[Any, ...], tuple[list[EvidenceRow], list[EvidenceRow]]] = {}
        for row in run.rows:
            sides.setdefault(row.but(patch), ([], []))[patch in row.patches].append(row)
        for without, having in sides.values():
            if without and having:
                paired.append(Pair(run=run, without=_middle(without), having=_middle(having)))
    return tuple(paired)


def _middle(rows: Sequence[EvidenceRow]) -> EvidenceRow:
    middle = statistics.median_low([row.step_ms for row in rows])
    return next(row for row in rows if row.step_ms == middle)


def pairs_within(claims: Sequence[Claim], patch: str, runs: Sequence[EvidenceRun]) -> tuple[Pair, ...]:
    """Return the pairs that were measured where one of these claims says that the patch pays."""
    within = []
    for pair in pairs_of(patch, runs):
        if any(_is_inside(pair, claim) for claim in claims):
            within.append(pair)
    return tuple(within)


def _is_inside(pair: Pair, claim: Claim) -> bool:
    """Return whether a pair was measured where the claim says that the patch pays."""
    cell = pair.having
    if family_of(pair.run.capability) not in claim.gpus or not launcher.range_contains(claim.versions, cell.vllm):
        return False
    if cell.method not in claim.methods or cell.attention_backend not in claim.backends:
        return False
    return (cell.context or 0) >= claim.from_tokens


def findings(patch: str, ranges: Sequence[str], claims: Sequence[Claim], runs: Sequence[EvidenceRun]) -> Iterator[str]:
    """Yield what is wrong with the evidence of a speed patch; `ranges` are the releases that it is written for."""
    if claims and not runs:
        yield f"{EVIDENCE_FILE} is missing, so nothing shows that the patch pays; measure it, or remove pays"
        return
    claimed = set().union(*(claim.gpus for claim in claims))
    for run in runs:
        if claims and (family := family_of(run.capability)) not in claimed:
            what = family or f"of compute capability {run.capability}"
            yield f"{EVIDENCE_FILE}: its cells of {run.machine} are of another machine: it is {what}, not in pays.gpus"
        others = set()
        for row in run.rows:
            if not any(launcher.range_contains(specifier, row.vllm) for specifier in ranges):
                others.add(row.vllm)
        if others:
            named = ", ".join(sorted(others))
            yield f"{EVIDENCE_FILE}: its cells of vLLM {named} are of another release than the patch is for"
    pairs = pairs_of(patch, runs)
    for index, claim in enumerate(claims):
        for text in _unshown(claim, pairs):
            yield f"pays.{index}: {text}"


def _unshown(claim: Claim, pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield every combination of a claim for which no cells show that the patch pays."""
    for family in claim.gpus:
        for method in claim.methods:
            for backend in claim.backends:
                narrowed = claim.model_copy(update={"gpus": (family,), "methods": (method,), "backends": (backend,)})
                supported = [pair for pair in pairs if _is_inside(pair, narrowed)]
                best = max((pair.gain for pair in supported), default=0.0)
                where = f"{method} on {family} with {backend} and vLLM {claim.versions}"
                if not supported:
                    yield f"no cells with and without the patch for {where} in {EVIDENCE_FILE}"
                elif best < LEAST_GAIN:
                    yield f"the best cell for {where} is {best:.2f} times as fast, which is within the noise"
                for pair in supported:
                    if (least := min(pair.step_gain, pair.first_token_gain or pair.step_gain)) < MOST_LOSS:
                        cell = f"{pair.having.concurrency} requests after {pair.having.context} tokens"
                        yield f"a cell for {where} is {least:.2f} times as fast ({cell}): set from_tokens"


READERS: Final = {"prompt": "triton-launch-params", "matrix": "humming-launch-params"}
VARIABLE: Final = "GEMMASPEC_LAUNCHES"
"""Its value has rows with spaces between, each for one patch. prompt:12,512,1=32,64,8,2 is capability 12.x, heads of
512, one byte an element; 32 rows, tiles of 64 keys, 8 warps, 2 stages. matrix:9,5376,8192,8=128,64,32,64,4,3,mma
is capability 9.x, N, K, up to 8 rows; N and K of a block and of a warp, stages, blocks an SM, instruction."""
_KEYS: Final = r"(?:1=(?:16|32|64|128),(?:32|64|128)|2=(?:16|32|64|128),(?:16|32|64|128))"
_PROMPT: Final = rf"prompt:(?:[7-9]|1\d),\d{{2,4}},{_KEYS},(?:4|8|16),[1-5]"
_SHAPE: Final = r"(?:[7-9]|1\d)(?:,[1-9]\d{0,5}){3}"
_MATRIX: Final = rf"matrix:{_SHAPE}=(?:64|128|256|512)(?:,(?:32|64|128|256)){{3}},[1-9],[1-8]"
_ROW: Final = rf"(?:{_PROMPT}|{_MATRIX},(?:wg)?mma)"
OWN_LAUNCHES: Final = re.compile(rf"{_ROW}(?: {_ROW})*", re.ASCII)
"""The form of the value. A prompt's block has at least 16 rows; Triton takes powers of two, and of FP8 32 keys."""


def is_twice(value: str) -> bool:
    """Return whether two rows are for the same heads or matrix and rows."""
    keys = [row.partition("=")[0] for row in value.split()]
    return len(set(keys)) < len(keys)


def readers(value: str) -> set[str]:
    """Return the patches that read these rows."""
    return {READERS[row.partition(":")[0]] for row in value.split()}
