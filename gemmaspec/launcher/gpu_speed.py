"""Measure how fast a GPU copies its own memory; runs in the Python of an image or a runtime, which has torch.

    python3 gpu_speed.py SECONDS SLICES

The last line on stderr is JSON: {"gpu": name, "bytes_per_second": [one for each slice]}, or {"problem": why not}.
A copy reads and writes, so each byte counts twice. Standard library of Python 3.10 and torch only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

MOST = 2 * 1024**3  # bytes of one buffer; there are two
LEAST = 512 * 1024**2  # less would fit into caches: 126 MB on a B200
SHARE = 8  # of what is free, a buffer takes one in so many


class Impossible(Exception):
    """It cannot be measured; the text says why."""


def measure(torch: Any, *, seconds: float, slices: int, clock: Any = time.perf_counter) -> dict[str, Any]:
    """Return the name of the first GPU and its rates. Raises Impossible."""
    if not torch.cuda.is_available():
        raise Impossible("torch sees no GPU")
    free, _ = torch.cuda.mem_get_info()
    size = min(MOST, free // SHARE)
    if size < LEAST:
        raise Impossible(f"{free / 1e9:.1f} GB are free on the GPU, and it takes {SHARE * LEAST / 1e9:.1f}")
    source = torch.ones(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    torch.cuda.synchronize()
    rates = []
    for _ in range(slices):
        began, copies = clock(), 0
        while (took := clock() - began) < seconds / slices:
            target.copy_(source)
            torch.cuda.synchronize()
            copies += 1
        rates.append(2 * size * copies / took)
    return {"gpu": torch.cuda.get_device_name(0), "bytes_per_second": rates}


def main(arguments: Sequence[str]) -> int:
    """Print the result on stderr; return 1 if nothing could be measured."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]

        found = measure(torch, seconds=float(arguments[0]), slices=int(arguments[1]))
    except ImportError:
        found = {"problem": "this Python has no torch"}
    except (Impossible, RuntimeError) as error:
        found = {"problem": str(error).partition("\n")[0]}
    print(json.dumps(found), file=sys.stderr)
    return 1 if "problem" in found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
