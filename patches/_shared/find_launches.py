"""Find the launch parameters with which the first GPU computes prompts, and multiplies few rows, fastest.

    python3 find_launches.py '{"layers": [{"heads": 32, "kv_heads": 4, "head": 512, "window": 0}], "fp8": true,
        "new": 2048, "context": 8192, "seconds": 60, "matrices": [[43008, 5376]], "tokens": [1, 5, 20],
        "matrices_seconds": 180, "most_seconds": 540}'

`gemmaspec tune` runs it in the Python of an image or a runtime, which has torch, Triton, Humming and the vLLM whose
kernels it launches. A matrix is N and K, multiplied by so many tokens. `seconds` are those of one kind of layer,
`matrices_seconds` those of all matrices, and `most_seconds` end a launch that hangs. Each line on stderr is JSON: the
rows so far, see `Search.row`, and in the last one what could not be measured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from matrix_launches import matrix_rows
from prompt_launches import prompt_rows
from searching import Impossible


def found(job: dict[str, Any]) -> dict[str, Any]:
    """Return the rows that could be measured, and why others could not; tell those that are there on the way."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for measured in (prompt_rows, matrix_rows):
        try:
            import torch  # type: ignore[import-not-found,unused-ignore]

            if not torch.cuda.is_available():
                raise Impossible("torch sees no GPU")
            for row in measured(torch, job):
                rows.append(row)
                tell({"rows": rows})
        except ImportError as error:
            problems.append(f"this Python lacks what is measured: {error}")
        except Exception as error:  # of Triton's and Humming's kinds; a broken context fails all that follows
            problems.append((str(error) or type(error).__name__).partition("\n")[0])
    return {"rows": rows, "problem": "; ".join(dict.fromkeys(problems))}


def tell(answer: dict[str, Any]) -> None:
    sys.stderr.write(json.dumps(answer) + "\n")
    sys.stderr.flush()


def main(arguments: Sequence[str]) -> int:
    """Print the result on stderr; return 1 if nothing could be measured."""
    job = json.loads(arguments[0])
    signal.alarm(job["most_seconds"])
    with tempfile.TemporaryDirectory(prefix="gemmaspec-kernels-") as home:  # a container's user may have none
        os.environ["HOME"] = home
        result = found(job)
    tell(result)
    return 0 if result["rows"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
