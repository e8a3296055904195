"""Launch parameters that a profile gives the patch triton-launch-params for its GPU."""

from __future__ import annotations

import re
from typing import Final

PATCH: Final = "triton-launch-params"
VARIABLE: Final = "GEMMASPEC_TRITON_PREFILL"
"""Its value has a row for each head size and kind of cache: 12,512,1=32,64,8,2 is capability 12.x, heads of 512, one
byte an element; 32 rows of a block, tiles of 64 keys, 8 warps, 2 stages."""
_ROW: Final = r"\d{1,2},\d{2,4},[12]=(?:16|32|64|128),(?:16|32|64|128),(?:4|8|16),[1-5]"
OWN_LAUNCHES: Final = re.compile(rf"{_ROW}(?: {_ROW})*")
"""The form of the value. A prompt's block has at least 16 rows; Triton takes powers of two."""
