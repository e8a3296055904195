"""`gemmaspec` and `python -m gemmaspec`."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    # A start allocates much and frees nothing; with the default of 700 the collector takes a tenth of the time.
    gc.set_threshold(200_000)
    # Otherwise pydantic reads the metadata of every installed package at every start to find plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from gemmaspec.cli.app import run
    from gemmaspec.lazily import on_first_use

    # Docker's SDK imports it, which takes longer than the rest of the SDK, and needs it only without the ssh program.
    on_first_use("paramiko")
    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:  # a second Ctrl-C during the message about the first
        sys.exit(130)
    finally:
        gc.freeze()  # the interpreter ends: nothing that is left needs to be searched for cycles


if __name__ == "__main__":
    main()
