"""Launch parameters of the kernels that a server runs: what to measure, and what was found."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gemmaspec.core.checkpoint.fields import printable
from gemmaspec.core.checkpoint.model import TextModel
from gemmaspec.core.patching.evidence import OWN_LAUNCHES, is_twice

_GAIN: Final = 1.02
"""Less than this is noise: repeated launches differ by 1 to 2 %."""
_MOST_TOKENS: Final = 40
"""More than these Humming multiplies as it was released: no other launch was faster on an H100."""

_Time = Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=1000)]


class LaunchRow(BaseModel):
    """One kind of layer, or one matrix for so many rows: the released launch and the fastest right one."""

    model_config = ConfigDict(frozen=True, strict=True)

    key: str
    """As in the variable, before the `=`."""
    best: str
    """As in the variable, after the `=`; empty without a right one."""
    turns: list[tuple[_Time, _Time]]
    """Times of the released launch and of the best one, one after the other, in one unit."""
    tried: _Count
    wrong: _Count
    failed: _Count

    @property
    def times(self) -> float:
        """How many times as fast the best launch is at least: its slowest turn against the released one's fastest."""
        return min((turn[0] for turn in self.turns), default=1.0) / max((turn[1] for turn in self.turns), default=1.0)

    @property
    def pays(self) -> bool:
        """Whether the best launch is faster by more than noise."""
        return bool(self.best) and self.times > _GAIN


class Launches(BaseModel):
    """What patches/_shared/find_launches.py found on one GPU."""

    model_config = ConfigDict(frozen=True, strict=True)

    rows: list[LaunchRow]
    problem: str = ""
    """Why some were not measured."""

    @property
    def variable(self) -> str | None:
        """The value of the variable; None if nothing is faster than as released."""
        return " ".join(f"{row.key}={row.best}" for row in self.rows if row.pays) or None

    def __str__(self) -> str:
        gains = [row.times for row in self.rows if row.pays]
        gain = f"{len(gains)} of {len(self.rows)} launches can be faster"
        if gains:
            more = f", by up to {max(gains):.2f} times"
        else:
            more = ""
        return gain + more + (f"; not measured: {self.problem}" if self.problem else "")


def layers(text: TextModel, *, tensor_parallel: int) -> list[dict[str, int]]:
    """Return each kind of attention layer of one GPU, as find_launches.py takes it."""
    kinds = set()
    for layer in text.layers:
        heads = layer.heads // tensor_parallel
        kv_heads = max(1, layer.kv_heads // tensor_parallel)
        kinds.add((heads, kv_heads, layer.head_dim, layer.window or 0))
    names = ("heads", "kv_heads", "head", "window")
    return [dict(zip(names, kind, strict=True)) for kind in sorted(kinds)]


def tokens(loads: Sequence[int], ks: Collection[int]) -> list[int]:
    """Return the numbers of tokens that a step computes with these requests and drafts, the small ones alone."""
    counts = {load * (k + 1) for load, k in itertools.product(loads, ks)}
    return sorted(count for count in counts if count <= _MOST_TOKENS)


def reading(lines: Sequence[str]) -> Launches | str:
    """Return what the script's last JSON says, or why it measured nothing."""
    try:
        launches = Launches.model_validate_json(next(line for line in reversed(lines) if line.startswith("{")))
    except (StopIteration, ValidationError):
        if lines:
            return printable(lines[-1])
        return "it printed nothing"
    variable = launches.variable
    if variable and (not OWN_LAUNCHES.fullmatch(variable) or is_twice(variable)):
        return "it printed impossible launch parameters"
    problem = printable(launches.problem)
    if launches.rows:
        return launches.model_copy(update={"problem": problem})
    return problem or "it measured nothing"
