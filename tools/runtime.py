"""Build the runtime of the profile tiny-cpu and copy its models, once for all tests and outside their time limits.

    .venv/bin/python tools/runtime.py

The last line of stdout is its interpreter. What is complete is not made again.
"""

from __future__ import annotations

import sys

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.kept.models import models_of, place
from gemmaspec.run.runtime import ensure_runtime
from gemmaspec.serve.prepare import runtime_spec


def main() -> int:
    """Build it and return the exit code."""
    try:
        interpreter = ensure_runtime(runtime_spec(load_profile("tiny-cpu")), progress=say)
    except GemmaspecError as error:
        say(error.message + (f"\n  {error.hint}" if error.hint else ""))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    for tiny in models_of(load_profile("tiny-cpu").profile):
        if not tiny.is_here:
            place(tiny)
    sys.stdout.write(f"{interpreter}\n")
    return 0


def say(text: str) -> None:
    """Print progress to stderr."""
    sys.stderr.write(f"runtime: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
