"""Renew uv.lock: every package that gemmaspec and its development need, with the hashes of PyPI's files.

    .venv/bin/python tools/lock.py            # what may move moves to its newest release
    .venv/bin/python tools/lock.py --check    # exit code 1 if it is not that of pyproject.toml

uv writes where it found a file. The settings of this machine are left out, so that the file names PyPI alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYPI = "https://pypi.org/simple"


def main(arguments: Sequence[str]) -> int:
    """Renew or check it, and return uv's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    how = ["--check"] if parser.parse_args(arguments).check else ["--upgrade"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    words = [sys.executable, "-m", "uv", "lock", "--no-config", "--default-index", PYPI, *how]
    return subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
