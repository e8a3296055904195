"""What was measured of a speed patch on the spot, and what follows: with one key, and one decision.

A measurement times the calls that a patch changes, at the shapes of one server, on the released tree and on the patched
one in turns (patches/_shared/measuring.py). It holds for exactly this GPU, driver, vLLM, torch and Triton, these bytes
of the patch, and these shapes.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gemmaspec.core import data, launcher
from gemmaspec.core.errors import PatchError
from gemmaspec.core.files import UnreadableFile, read_regular, state_dir
from gemmaspec.core.patching.backports import NUMBERS
from gemmaspec.core.patching.evidence import family_of
from gemmaspec.core.patching.patch import Patch, with_needs
from gemmaspec.core.patching.runs_on import RunsOn
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.resolved.resolve import Resolved
from gemmaspec.core.signed import is_own, signature

CASES_FILE: Final = "cases.py"
"""The file of a patch that says what to time, at the shapes of a server."""
FOLDER: Final = "measured-here"
"""Of the state: a file for each key."""
LEAST_GAIN: Final = 1.03
"""By how many times a whole step must be as fast, at some load."""
MOST_LOSS: Final = 0.97
"""And no call may be slower than this."""
HERE: Final = "measured here"
"""How it begins where a decision comes from a measurement of this machine."""
_MOST_BYTES: Final = 1024 * 1024
_MOST_FILES: Final = 256

_Time = Annotated[float, Field(gt=0, lt=1e7, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=300)]
_Word = Annotated[str, Field(min_length=1, max_length=300)]
_Count = Annotated[int, Field(gt=0, le=10_000_000)]


class Spot(BaseModel):
    """Base of what the files hold."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class Key(Spot):
    """Everything that a measurement depends on."""

    patch: _Word
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of the patch's diff for this release, of those that it needs, and of what measures it."""
    vllm: _Word
    capability: Annotated[str, Field(pattern=r"^\d{1,2}\.\d$")]
    place: _Word
    """GPU, driver, torch and Triton, as the launcher finds them next to vLLM."""
    shape: dict[str, str | int | None]
    """What decides the shapes of a server's kernels, see `shape_of`."""

    @property
    def name(self) -> str:
        """The name of its file."""
        text = json.dumps(self.model_dump(), sort_keys=True)
        return f"{self.patch}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


class Case(Spot):
    """One call on both trees, in milliseconds."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    part: Literal["step", "prompt", "rest"]
    """Of a step, of a prompt, or what the patch leaves alone of a prompt."""
    load: tuple[_Count, _Count]
    """Requests at once, and the tokens of each."""
    times: Annotated[int, Field(gt=0, le=10_000)]
    """How often a step makes the call."""
    bound: Annotated[float, Field(gt=0, le=0.25)]
    """The share of the largest value by which both may differ."""
    off: Annotated[float, Field(ge=0, le=0.25)]
    """By which they do."""
    released: tuple[_Time, ...] = Field(min_length=1, max_length=20)
    patched: tuple[_Time, ...] = Field(min_length=1, max_length=20)

    @property
    def took(self) -> tuple[float, float]:
        """The medians of the released tree and of the patched one."""
        return statistics.median(self.released), statistics.median(self.patched)


State = Literal["measured", "wrong", "crashed", "timeout", "failed", "unfit", "idle"]
"""wrong: the patched tree computes something else. crashed, timeout: a tree died, or needed too long. failed: it could
not be measured. unfit: the patch does not fit this vLLM. idle: the server makes no call that the patch changes."""


class Measurement(Spot):
    """What was measured of one patch."""

    patch: _Word
    state: State
    side: Literal["", "released", "patched"] = ""
    """The tree that was not measured to its end."""
    detail: _Text = ""
    cases: tuple[Case, ...] = Field(default=(), max_length=64)


class Step(Spot):
    """What `predict` says of a whole step at a load, before the patch."""

    load: tuple[_Count, _Count]
    ms: _Time


class Kept(Spot):
    """A file of the store."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    key: Key
    at: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$")]
    """When, in UTC."""
    measurement: Measurement
    steps: tuple[Step, ...] = Field(default=(), max_length=64)

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        return f"{HERE} on {self.at[:10]}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What follows from a measurement."""

    taken: bool | None
    """Whether the patch is to be taken; None where the measurement says nothing, and all stays as it is without it."""
    because: str
    """In one short line."""


def verdict(measurement: Measurement, steps: Iterable[Step]) -> Verdict:
    """Return whether to take a patch: same values, no call slower by more than 3 %, a step or prompt faster by 3 %."""
    if measurement.state != "measured":
        return _of_fault(measurement)
    gains = _gains(measurement.cases, steps)
    most, whole = max(gains, default=(1.0, ""))
    percent = round((most - 1) * 100)
    for case in measurement.cases:
        released, patched = case.took
        if case.part != "rest" and released < MOST_LOSS * patched:
            why = f"{case.name}: {patched / released:.2f} times as long"
            if most >= LEAST_GAIN:
                why += f", though {whole} gains up to {percent} %"
            return Verdict(taken=False, because=why)
    if not gains:
        return Verdict(taken=None, because="nothing says how long the whole takes of which it is a part")
    if most < LEAST_GAIN:
        return Verdict(taken=False, because=f"{whole} gains {percent} %")
    return Verdict(taken=True, because=f"{whole} gains up to {percent} %")


def _of_fault(measurement: Measurement) -> Verdict:
    """Return what follows where not every case was measured: a fault of the released tree says nothing."""
    words = {"wrong": "wrong values", "crashed": "the patched vLLM died", "timeout": "the patched vLLM hung"}
    if measurement.state == "idle":
        return Verdict(taken=None, because="its server makes no call here that it changes")
    word = words.get(measurement.state)
    detail = f": {measurement.detail}" if measurement.detail else ""
    if word is None or measurement.side != "patched":
        return Verdict(taken=None, because=f"not measured ({measurement.state}){detail}")
    return Verdict(taken=False, because=word + detail)


def _gains(cases: Sequence[Case], steps: Iterable[Step]) -> list[tuple[float, str]]:
    """Return how many times as fast the whole is at each load of which it is known how long it takes, and what it is.

    A step takes as long as is predicted, and at least as long as the calls that were timed. Of a prompt, what the patch
    leaves alone was timed too.
    """
    gains = []
    for step in steps:
        released, patched = _took(cases, "step", step.load)
        if released:
            whole = max(step.ms, released)
            gains.append((whole / (whole - released + patched), "a step"))
    for load in {case.load: None for case in cases if case.part == "rest"}:
        released, patched = _took(cases, "prompt", load)
        rest, _ = _took(cases, "rest", load)
        gains.append(((rest + released) / (rest + patched), "a prompt"))
    return gains


def _took(cases: Sequence[Case], part: str, load: tuple[int, int]) -> tuple[float, float]:
    """Return how long all calls of a part take at a load, on the released tree and on the patched one."""
    released = patched = 0.0
    for case in cases:
        if (case.part, case.load) == (part, load):
            before, after = case.took
            released += case.times * before
            patched += case.times * after
    return released, patched


def shape_of(resolved: Resolved) -> dict[str, str | int | None]:
    """Return what decides the shapes of a server's kernels, as far as it is known without its checkpoints."""
    resolved = replace(resolved, target=None, draft=None)
    profile, spec = resolved.profile, resolved.profile.speculative
    serve = profile.serve
    draft = profile.draft.model if profile.draft else None
    k = spec.num_speculative_tokens if spec else 0
    return {
        "target": profile.target.model,
        "revision": profile.target.revision,
        "draft": draft,
        "tensor_parallel": serve.tensor_parallel_size or 1,
        "pipeline_parallel": serve.pipeline_parallel_size or 1,
        "quantization": profile.target.quantization,
        "cache": known(resolved.cache),
        "backend": known(resolved.backend),
        "method": resolved.method,
        "k": k,
        "sequences": known(resolved.sequences),
        "length": known(resolved.length),
        "batch": known(resolved.batch),
    }


def digest_of(patch: Patch, patches: Mapping[str, Patch], vllm: str) -> str:
    """Return the digest of what is measured: a patch with those that it needs, its cases, and the files they share.

    Raise PatchError if a patch that it needs is missing.
    """
    found = hashlib.sha256()
    for one in with_needs(patch, patches):
        for variant in one.variants:
            if launcher.range_contains(variant.specifier, vllm):
                edits = [(edit.path, edit.hunks) for edit in variant.files]
                found.update(repr(edits).encode())
    for file in (patch.folder / CASES_FILE, patch.folder / NUMBERS, *sorted(data.PROBES.glob("*.py"))):
        if file.is_file():
            found.update(f"{file.name} {launcher.sha256(file.read_bytes())}\n".encode())
    return found.hexdigest()


def parse(file: Path, content: bytes) -> Kept:
    """Return what a file of the store holds. Raise PatchError for another one, or one that is not this user's own."""
    try:
        document = json.loads(content)
        signed = document.pop("signed")
        kept = Kept.model_validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors()[0]
        raise PatchError(f"{file}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
        raise PatchError(f"{file}: not a measurement") from None
    if not is_own(document, signed):
        raise PatchError(f"{file}: this user's gemmaspec did not write it")
    return kept


def kept_of(patch: str) -> tuple[Kept, ...]:
    """Return what is kept of a patch here, the newest first; what cannot be read is as if it were not there."""
    found = []
    for file in sorted((state_dir() / FOLDER).glob(f"{patch}-*.json"))[:_MOST_FILES]:
        try:
            one = parse(file, read_regular(file, limit=_MOST_BYTES) or b"")
        except (UnreadableFile, OSError, PatchError):
            continue
        if one.key.patch == patch == one.measurement.patch and one.key.name == file.name:
            found.append(one)
    return tuple(sorted(found, key=lambda one: (one.at, one.key.name), reverse=True))


def verdict_here(
    kept: Sequence[Kept], patch: Patch, patches: Mapping[str, Patch], setting: RunsOn
) -> tuple[Kept | None, Verdict]:
    """Return the newest measurement of exactly this patch for such a server, if any, and what follows from it."""
    measured = _newest(kept, patch, patches, setting)
    if measured is None:
        return None, Verdict(taken=None, because="not measured here")
    return measured, verdict(measured.measurement, measured.steps)


def _newest(kept: Sequence[Kept], patch: Patch, patches: Mapping[str, Patch], setting: RunsOn) -> Kept | None:
    if not kept:
        return None
    try:
        digest = digest_of(patch, patches, setting.vllm)
    except PatchError:
        return None
    for one in kept:
        key = one.key
        same_gpu = family_of(key.capability) == setting.family and setting.capability in ("", key.capability)
        same_code = (key.vllm, key.digest) == (setting.vllm, digest)
        if same_gpu and same_code and key.shape == setting.shape:
            return one
    return None


def text_of(kept: Kept) -> str:
    """Return the text of a file of the store."""
    document = kept.model_dump(mode="json", by_alias=True)
    return json.dumps({**document, "signed": signature(document)}, indent=1, sort_keys=True) + "\n"
