"""Build the managed runtime of the profile tiny-cpu ahead of time, so that no test's time limit pays for it.

    .venv/bin/python tools/runtime.py

The last line of stdout is its interpreter. A finished runtime is left alone.
"""

from __future__ import annotations

import sys

from gemmaspec.deploy.prepare import runtime_spec
from gemmaspec.errors import GemmaspecError
from gemmaspec.profile.load import load_profile
from gemmaspec.runtime import ensure_runtime


def main() -> int:
    """Build it; returns the exit code."""
    try:
        interpreter = ensure_runtime(runtime_spec(load_profile("tiny-cpu")), progress=say)
    except GemmaspecError as error:
        say(error.message + (f"\n  {error.hint}" if error.hint else ""))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"{interpreter}\n")
    return 0


def say(text: str) -> None:
    """Progress, on stderr."""
    sys.stderr.write(f"runtime: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
