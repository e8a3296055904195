"""Launch parameters of Triton's attention for prompts: what to measure, and what was found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gemmaspec.core.checkpoint.fields import printable
from gemmaspec.core.checkpoint.parts import TextModel
from gemmaspec.core.patching.evidence import OWN_LAUNCHES

_GAIN: Final = 1.03
"""Less than this is noise: repeated launches differ by 1 to 2 %."""

_Time = Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=1000)]


class LaunchRow(BaseModel):
    """One kind of layer: the time of a launch in milliseconds as released, and with the fastest right parameters."""

    model_config = ConfigDict(frozen=True, strict=True)

    head: Annotated[int, Field(ge=16, le=4096)]
    bytes: Annotated[int, Field(ge=1, le=2)]
    """Of an element of a query: 1 with an FP8 cache."""
    released: list[int | None]
    """Rows of a block, tile of keys, warps, stages as vLLM chooses them; None is Triton's own choice."""
    released_ms: _Time
    best: list[int] | None
    best_ms: _Time | None
    tried: _Count
    wrong: _Count
    failed: _Count

    @property
    def times(self) -> float:
        """How many times as fast the best launch is; 1 without one."""
        return self.released_ms / self.best_ms if self.best_ms else 1.0

    @property
    def pays(self) -> bool:
        """Whether the best launch is faster by more than noise."""
        return self.times > _GAIN


class Launches(BaseModel):
    """What core/launcher/tune_kernels.py found on one GPU."""

    model_config = ConfigDict(frozen=True, strict=True)

    gpu: str
    capability: Annotated[int, Field(ge=1, le=99)]
    """The major number of the compute capability."""
    vllm: str
    triton: str
    rows: list[LaunchRow]

    @property
    def variable(self) -> str | None:
        """The value of the variable; None if nothing is faster than as released."""
        paying = [
            (f"{row.head},{row.bytes}", ",".join(map(str, row.best))) for row in self.rows if row.best and row.pays
        ]
        return " ".join(f"prompt:{self.capability},{key}={best}" for key, best in paying) or None


def layers(text: TextModel, *, tensor_parallel: int) -> list[dict[str, int]]:
    """Return each kind of attention layer of one GPU, as tune_kernels.py takes it."""
    kinds = {
        (layer.heads // tensor_parallel, max(1, layer.kv_heads // tensor_parallel), layer.head_dim, layer.window or 0)
        for layer in text.layers
    }
    return [dict(zip(("heads", "kv_heads", "head", "window"), kind, strict=True)) for kind in sorted(kinds)]


def reading(lines: Sequence[str]) -> Launches | str:
    """Return what the script's last line says, or why it measured nothing."""
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
        if problem := answer.get("problem"):
            return printable(str(problem))
        launches = Launches.model_validate(answer)
    except (IndexError, ValueError, AttributeError, TypeError, RecursionError, ValidationError):
        return printable(lines[-1]) if lines else "it printed nothing"
    if launches.variable and not OWN_LAUNCHES.fullmatch(launches.variable):
        return "it printed impossible launch parameters"
    names = {"gpu": printable(launches.gpu, 80), "vllm": printable(launches.vllm, 40)}
    return launches.model_copy(update=names | {"triton": printable(launches.triton, 40)})
