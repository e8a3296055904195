"""Measured rows: the one shape of a measured cell, in measurements/, in a patch's evidence.json and in bench's results.

A row says all that makes its cell. A key that is left out is not known, and such a row is not comparable with a server
whose speed depends on it.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    StrictBool,
    StrictInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from gemmaspec.core.errors import UsageError
from gemmaspec.core.sentences import sentence

NONE: Final = "none"
"""The method of a row without speculation."""
METHODS: Final = (NONE, "draft_model", "eagle", "eagle3", "mtp", "ngram", "suffix", "dflash", "dspark")
RESULT: Final = "result.json"
MAX_ROWS: Final = 10_000
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_K: Final = 64
MAX_CONCURRENCY: Final = 100_000
MAX_CONTEXT: Final = 10_000_000
_ROUNDING: Final = 1e-6

GraphMode = Literal["full", "piecewise", "none"]
"""The CUDA graphs of a step: one for all of it, one for each piece between attentions, or none."""
GRAPH_MODES: Final[Mapping[str, GraphMode]] = {
    "FULL": "full", "FULL_AND_PIECEWISE": "full", "FULL_DECODE_ONLY": "full", "PIECEWISE": "piecewise", "NONE": "none",
}  # fmt: skip
"""vLLM's name of a mode → what decoding runs in."""
Graphs = Literal["compiled", "uncompiled", "eager"]
"""compiled: by torch.compile and with graphs; uncompiled: with graphs alone; eager: without graphs."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What keeps cells apart: rows of different settings never explain each other.

    Compilation is worth 4 to 10 % of a step, so that `compiled` and `uncompiled` rows do explain each other, by a
    factor with an uncertainty (predict.predict); only `eager` is a setting of its own.
    """

    compile: str | bool | None = None
    """How the server was compiled, as reported by the measurement; None if unknown."""
    vllm: str | None = None
    patches: tuple[str, ...] | None = ()
    """The patches for speed that were in, sorted; None if they are not known."""
    backend: str | None = None
    """The attention backend that ran; None if unknown."""
    images: bool | None = None
    """Whether images were served; None if unknown."""
    kv_cache: str | None = None
    """The format of the KV cache; None if unknown."""
    linear_kernel: str | None = None
    """The kernel of the quantized matrices; None if unknown."""

    @property
    def apart(self) -> tuple[Any, ...]:
        """Return the key of the settings whose rows explain each other."""
        served = self.images, self.kv_cache, self.linear_kernel
        return self.vllm, self.patches, self.backend, self.graphs == "eager", *served

    @property
    def graphs(self) -> Graphs:
        """Return what the compilation amounts to."""
        mode = str(self.compile).replace('"', "").replace(" ", "")
        if mode == "eager" or "cudagraph_mode:NONE" in mode or "cudagraph_mode=NONE" in mode:
            return "eager"
        plain = ("none", "disabled", "False", "-O0")
        if mode in plain or "mode:0" in mode or "mode=0" in mode:
            return "uncompiled"
        return "compiled"

    def __str__(self) -> str:
        parts = []
        if self.compile is not None:
            parts.append(f"compile {json.dumps(self.compile)}")
        if self.vllm:
            parts.append(f"vLLM {self.vllm}")
        if self.backend:
            parts.append(self.backend)
        if self.kv_cache:
            parts.append(f"KV cache {self.kv_cache}")
        if self.images is not None:
            parts.append("images on" if self.images else "images off")
        if self.linear_kernel:
            parts.append(self.linear_kernel)
        if self.patches is None:
            parts.append("patches unknown")
        elif self.patches:
            parts.append(f"with {' + '.join(self.patches)}")
        return ", ".join(parts) or "one setting"


def _listed(value: object) -> object:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise ValueError("must be a list")
    return value


def _worded(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)[:200]
    return value


_Rate = Annotated[FiniteFloat, Field(ge=1e-6, le=1e9)]
_Word = Annotated[str, Field(min_length=1, max_length=200)]


_Size = Annotated[StrictInt, Field(ge=1, le=1024)]
"""A parallel size; None where it was not recorded, as before cells had it, which counts as 1."""


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How a server is spread over GPUs: vLLM's parallel sizes."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    draft: int = 1
    """GPUs that the draft is spread over."""

    @property
    def gpus(self) -> int:
        """All of the server."""
        return self.tensor * self.pipeline * self.data

    def keys(self) -> dict[str, int]:
        """Return it as a row has it."""
        return {
            "tensor_parallel_size": self.tensor,
            "pipeline_parallel_size": self.pipeline,
            "data_parallel_size": self.data,
            "draft_tensor_parallel_size": self.draft,
        }

    def __str__(self) -> str:
        sizes = [f"{name} {size}" for name, size in self.keys().items() if size > 1]
        if sizes:
            return f"{self.gpus} GPUs ({', '.join(sizes)})"
        return "one GPU"


class Row(BaseModel):
    """One measured cell. Other keys of a file are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    method: Literal["none", "draft_model", "eagle", "eagle3", "mtp", "ngram", "suffix", "dflash", "dspark"]
    k: Annotated[StrictInt, Field(ge=0, le=MAX_K)]
    """Draft tokens per step; 0 without speculation."""
    concurrency: Annotated[StrictInt, Field(ge=1, le=MAX_CONCURRENCY)]
    context: Annotated[StrictInt, Field(ge=0, le=MAX_CONTEXT)]
    """Prompt tokens."""
    acceptance: Annotated[tuple[Annotated[FiniteFloat, Field(ge=0, le=1)], ...], BeforeValidator(_listed)] = ()
    """r_1 … r_k: share of the drafts whose first i tokens were all accepted."""
    tokens_per_second: _Rate = 0.0
    """Total of all requests; from step_ms where it is not given."""
    step_ms: _Rate | None = None
    """Time of a step, from the first token on."""
    ttft_ms: _Rate | None = None
    """Median wait for the first token."""
    answer_tokens: Annotated[FiniteFloat, Field(ge=2, le=1e7)] | None = None
    """Tokens of an answer, on average: with it tokens_per_second holds the prompt, without it decoding alone."""
    compile: StrictBool | Annotated[str, BeforeValidator(_worded)] | None = None
    vllm: _Word | None = None
    attention_backend: _Word | None = None
    draft_backend: _Word | None = None
    """The attention backends that ran, of the target and of the draft, by their names in vLLM's registry."""
    graphs: GraphMode | None = None
    """The CUDA graphs that vLLM resolved for the target's steps of decoding."""
    head_graphs: GraphMode | None = None
    """The same for the draft's steps; only in a row with a draft."""
    images: StrictBool | None = None
    """Whether images were served."""
    kv_cache_dtype: _Word | None = None
    """What the format of the KV cache resolved to: bf16, fp8 …"""
    linear_kernel: _Word | None = None
    """The kernel that multiplied the quantized matrices: humming, marlin …"""
    sampling: _Word | None = None
    """`greedy`, or the values that were sampled with."""
    patches: (
        Annotated[tuple[Annotated[str, Field(min_length=1, max_length=100)], ...], BeforeValidator(_listed)] | None
    ) = ()
    """The patches for speed that were in; None if they are not known."""
    acceptance_by: str | None = None
    """`synthetic`: the acceptance was drawn by lot, and is not the pair's."""
    machine: _Word | None = None
    gpu: _Word | None = None
    """The machine and the GPU that were read; None where they could not be read."""
    target: _Word | None = None
    """The target model as served, or a pattern of targets with the same shapes."""
    tensor_parallel_size: _Size | None = None
    pipeline_parallel_size: _Size | None = None
    data_parallel_size: _Size | None = None
    draft_tensor_parallel_size: _Size | None = None

    @model_validator(mode="before")
    @classmethod
    def _rated(cls, given: Any) -> Any:
        """Return the row with tokens per second, computed from the step where they are not given."""
        if not isinstance(given, Mapping):
            return given
        may_be_null = ("patches", "compile")
        measured = {key: value for key, value in given.items() if value is not None or key in may_be_null}
        if "tokens_per_second" not in measured:
            if "step_ms" not in measured:
                raise ValueError("tokens_per_second and step_ms are missing; one of them is needed")
            with_rate = TypeAdapter(_Rate)
            rates = measured.get("acceptance") or ()
            try:
                tokens = (1 + sum(rates)) * measured["concurrency"]
                measured["tokens_per_second"] = tokens / with_rate.validate_python(measured["step_ms"]) * 1000
            except (ValidationError, TypeError, KeyError, OverflowError):
                measured["tokens_per_second"] = 1.0  # its own field says what is wrong
        return measured

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.method == NONE) != (self.k == 0):
            raise ValueError(f"has the method {self.method} with k {self.k}; without speculation, write none and k 0")
        if self.k == 0 and self.acceptance:
            raise ValueError("has k 0 and an acceptance, but without speculation nothing is accepted")
        if self.k and not self.acceptance:
            raise ValueError("acceptance is missing")
        if len(self.acceptance) != self.k:
            raise ValueError(f"acceptance has {len(self.acceptance)} positions, but k is {self.k}")
        if any(after > before + _ROUNDING for before, after in pairwise(self.acceptance)):
            raise ValueError(
                "acceptance increases with the position, but r_i counts drafts whose first i tokens are accepted"
            )
        return self

    @property
    def setting(self) -> Setting:
        """Return what keeps it apart from other rows."""
        if self.patches is None:
            patches = None
        else:
            patches = tuple(sorted(set(self.patches)))
        return Setting(
            compile=self.compile,
            vllm=self.vllm,
            patches=patches,
            backend=self.attention_backend,
            images=self.images,
            kv_cache=self.kv_cache_dtype,
            linear_kernel=self.linear_kernel,
        )

    @property
    def parallel(self) -> Parallel:
        """How its server was spread over GPUs."""
        tensor = self.tensor_parallel_size or 1
        return Parallel(
            tensor=tensor,
            pipeline=self.pipeline_parallel_size or 1,
            data=self.data_parallel_size or 1,
            draft=self.draft_tensor_parallel_size or tensor,
        )

    def parallel_as(self, other: Parallel) -> bool:
        """Return whether its server was spread like another; without a draft, whatever the draft's size is."""
        own = self.parallel
        return own == other or (self.k == 0 and replace(own, draft=other.draft) == other)

    @property
    def by_lot(self) -> bool:
        """Whether the acceptance is synthetic, so that it is not the pair's."""
        return self.acceptance_by == "synthetic"

    @property
    def tokens_per_step(self) -> float:
        """E(k) = 1 + r_1 + … + r_k."""
        return 1 + sum(self.acceptance)

    @property
    def step(self) -> float:
        """Return the seconds of a step: as timed, or as tokens per second with the wait for the first token have it."""
        if self.step_ms is not None and self.answer_tokens is None and self.acceptance_by == "synthetic":
            return self.step_ms / 1000  # the rates are those that were set, and the lot differs between cells
        return self.tokens_per_step * self.concurrency / self.tokens_per_second


@dataclass(frozen=True, kw_only=True)
class Run:
    """Rows of one machine, measured in one way on one day."""

    machine: str
    targets: tuple[str, ...]
    """Patterns of target models, in lowercase: those of the shapes that were measured."""
    source: str
    rows: tuple[Row, ...]


def parse_rows(text: str, *, file: str) -> tuple[Row, ...]:
    """Return the rows of a measured file. Raises UsageError with the file, the row and the problem."""
    if len(text) > MAX_BYTES:
        raise UsageError(f"{file}: is larger than {MAX_BYTES // 2**20} MiB, too large for a measured file")
    document = _json(text, file)
    if isinstance(document, dict):
        rows = document.get("rows")
    else:
        rows = None
    if not isinstance(rows, list):
        raise UsageError(f'{file}: not a measured file; it has no list "rows"', hint="gemmaspec bench PROFILE --json")
    if not rows:
        raise UsageError(f"{file}: contains no rows")
    if len(rows) > MAX_ROWS:
        raise UsageError(f"{file}: holds {len(rows)} rows; the limit is {MAX_ROWS}")
    head = document.get("same", {})
    if not isinstance(head, dict):
        raise UsageError(f"{file}: same is {_shown(head)}, and must be a map of keys")
    head = head | ({"machine": document["machine"]} if isinstance(document.get("machine"), str) else {})
    parsed = tuple(_row(row, f"{file}: row {number}", head) for number, row in enumerate(rows, 1))
    _same_machine(parsed, file)
    lacking = []
    if "compile" not in head:
        lacking = [number for number, row in enumerate(rows, 1) if "compile" not in row]
    if lacking and len(lacking) < len(rows):
        raise UsageError(f"{file}: row {lacking[0]}: compile is missing, but other rows have it")
    return parsed


def read_rows(path: Path) -> tuple[Row, ...]:
    """Return the rows of a measured file, or of the result in a folder. Raises UsageError."""
    return parse_rows(read_text(path, limit=MAX_BYTES), file=str(path))


def setting_json(setting: Setting) -> dict[str, Any]:
    """Return what a row says of its setting."""
    document: dict[str, Any] = {"compile": setting.compile, **({"vllm": setting.vllm} if setting.vllm else {})}
    if setting.patches != ():  # None, which is not known, is written down
        document["patches"] = setting.patches and list(setting.patches)
    known = {
        "attention_backend": setting.backend,
        "images": setting.images,
        "kv_cache_dtype": setting.kv_cache,
        "linear_kernel": setting.linear_kernel,
    }
    return document | {key: value for key, value in known.items() if value is not None}


def _json(text: str, file: str) -> Any:
    def refuse(constant: str) -> None:
        raise UsageError(f"{file}: holds {constant}, which cannot be a measured value")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise UsageError(f"{file}: not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise UsageError(f"{file}: nested too deeply for a measured file") from None
    except ValueError:
        raise UsageError(f"{file}: contains a number that is too long") from None


def _row(row: Any, place: str, head: Mapping[str, Any]) -> Row:
    if not isinstance(row, dict):
        raise UsageError(f"{place} is {_shown(row)}, and must be a map of keys")
    try:
        return Row.model_validate({**head, **row})
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        raise UsageError(f"{place}: {_said(key, first)}") from None


def _said(key: str, error: Mapping[str, Any]) -> str:
    if not key:
        return sentence(error)
    if error["type"] == "missing":
        return f"{key} is missing"
    if key == "method":
        wanted = f"must be one of {', '.join(METHODS)}"
    else:
        wanted = sentence(error).partition(", got ")[0]
    return f"{key} is {_shown(error['input'])}, and {wanted}"


def _same_machine(rows: Sequence[Row], file: str) -> None:
    for key in ("machine", "gpu"):
        named = sorted({str(getattr(row, key)) for row in rows if getattr(row, key) is not None})
        if len(named) > 1:
            raise UsageError(
                f"{file}: mixes rows of {' and '.join(named[:4])}, but step times are specific to one machine",
                hint="use one file per machine",
            )


def _shown(value: Any) -> str:
    """Return a value as short text for a message."""
    text = "".join(_printable(ascii(value) if isinstance(value, float) else str(json.dumps(value, default=str))))
    if len(text) <= 60:
        return text
    return f"{text[:57]}…"


def _printable(text: str) -> Iterator[str]:
    return (char for char in text[:200] if char.isprintable())


def read_text(path: Path, *, limit: int) -> str:
    """Return the text of a file, or of the result in a folder. Raises UsageError if it is unreadable or too large."""
    file = result_file(path)
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for ever
            raise UsageError(f"{file}: not a file")
        if file.stat().st_size > limit:
            raise UsageError(f"{file}: larger than {limit // 2**20} MiB, too large for a result")
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"missing file {file}", hint="gemmaspec bench PROFILE") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file}: not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot read it: {error.strerror}") from None


def result_file(path: Path) -> Path:
    """Return the file of a result, which may be named by its folder."""
    if path.is_dir():
        return path / RESULT
    return path
