"""What a long test prints about its steps, so that a person who runs it with -s can follow."""

from __future__ import annotations

import sys
import time


def said(what: str, began: float = 0.0, text: str = "") -> float:
    """Print a step, after how long it came, and what was printed there; return the seconds since `began`."""
    took = time.monotonic() - began
    after = f", after {took:.1f} s" if began else ""
    sys.stdout.write(f"\n== {what}{after}\n{text.rstrip()}\n")
    sys.stdout.flush()
    return took
