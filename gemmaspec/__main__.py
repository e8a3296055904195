"""`gemmaspec` and `python -m gemmaspec`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    # Otherwise pydantic reads the metadata of every installed package, at every start, to look for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from gemmaspec.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
