"""Start of the container: `python3 -IB /watch`."""

import sys

from gemmaspec.look.sidecar.watcher import main

sys.exit(main(sys.argv[1:]))
