"""`gemmaspec` and `python -m gemmaspec`."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    gc.set_threshold(50_000)  # a start allocates much and frees nothing; at 700 the collector takes a tenth of it
    # Otherwise pydantic reads the metadata of every installed package, at every start, to look for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from gemmaspec.cli.app import run

    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:  # a second one, while the first was being told
        sys.exit(130)


if __name__ == "__main__":
    main()
