"""How a server may come to run, as far as the choice of its speed patches depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class RunsOn:
    """One way in which a server may come to run: a release, on a family of GPUs."""

    vllm: str
    family: str
    capability: str = ""
    """The GPU's compute capability, to be found on the machine at the start; "" if the profile names the machine."""
    method: str
    """`none` without speculation."""
    backend: str | None
    """The attention backend that will run; None if unknown."""
    shape: Mapping[str, str | int | None] = field(default_factory=dict)
    """What decides the shapes of its kernels, see core/patching/spot.py."""
