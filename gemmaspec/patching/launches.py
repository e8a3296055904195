"""Launch parameters that a profile gives the patch triton-launch-params for its GPU."""

from __future__ import annotations

import re
from typing import Final

PATCH: Final = "triton-launch-params"
VARIABLE: Final = "GEMMASPEC_TRITON_PREFILL"
"""Its value has a row for each head size and kind of cache: 12,512,1=32,64,8,2 is capability 12.x, heads of 512, one
byte an element; 32 rows of a block, tiles of 64 keys, 8 warps, 2 stages."""
_KEYS: Final = r"(?:1=(?:16|32|64|128),(?:32|64|128)|2=(?:16|32|64|128),(?:16|32|64|128))"
_ROW: Final = rf"(?:[7-9]|1\d),\d{{2,4}},{_KEYS},(?:4|8|16),[1-5]"
OWN_LAUNCHES: Final = re.compile(rf"{_ROW}(?: {_ROW})*", re.ASCII)
"""The form of the value. A prompt's block has at least 16 rows; Triton takes powers of two, and of FP8 32 keys."""


def is_twice(value: str) -> bool:
    """Return whether two rows are for the same heads."""
    keys = [row.partition("=")[0] for row in value.split()]
    return len(set(keys)) < len(keys)
