"""Which compilation settings may be taken over without a question. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

_COMPILES: Final = frozenset(
    {"mode", "level", "cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size", "compile_sizes"}
    | {"cudagraph_num_of_warmups", "full_cuda_graph", "use_cudagraph", "use_inductor_graph_partition", "pass_config"}
)
"""Keys of --compilation-config that name neither code nor a file."""


def compiles_plainly(flag: str, keys: Sequence[str], value: Any) -> bool:
    """Return whether --compilation-config says only how to compile, in numbers and words."""
    if flag != "--compilation-config":
        return False
    for key in reversed(keys):
        value = {key: value}
    return isinstance(value, dict) and value.keys() <= _COMPILES and _is_plain(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, str) or re.fullmatch(r"[A-Za-z0-9_]*", value) is not None
