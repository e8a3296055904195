"""Build the managed runtime of the profile tiny-cpu in advance, so that it does not count towards a test's time limit.

    .venv/bin/python tools/runtime.py

The last line of stdout is its interpreter. A complete runtime is not built again.
"""

from __future__ import annotations

import sys

from gemmaspec.deploy.prepare import runtime_spec
from gemmaspec.errors import GemmaspecError
from gemmaspec.profile.load import load_profile
from gemmaspec.runtime import ensure_runtime


def main() -> int:
    """Build it and return the exit code."""
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
    """Print progress to stderr."""
    sys.stderr.write(f"runtime: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
