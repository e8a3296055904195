"""`gemmaspec` and `python -m gemmaspec`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
from types import ModuleType
from typing import Any, Final

_INTERRUPTED: Final = 130
_AGAIN_S: Final = 0.05


class _Later(ModuleType):
    """Stands in sys.modules until something reads an attribute; importlib's LazyLoader loads at the next `import`."""

    def __getattr__(self, attribute: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), attribute)


def on_first_use(name: str) -> None:
    """Make `import NAME` cost nothing until something reads an attribute of the package."""
    sys.modules.setdefault(name, _Later(name))


def raise_again(what: sys.UnraisableHookArgs) -> None:
    """Raise an interrupt once more a moment after it came where it is dropped, and leave the rest to Python.

    CPython drops what is raised in a callback of a weak reference, as each import has one, and pydantic's Rust drops it
    in patterns. A subclass is that of SIGTERM (Terminated in run/kept/stack_lock.py).
    """
    if not issubclass(what.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(what)
        return
    if what.exc_type is KeyboardInterrupt:
        number = signal.SIGINT
    else:
        number = signal.SIGTERM
    threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number)).start()


def main() -> None:
    """Run the command line and exit with its code."""
    # A start allocates much and frees nothing; with the default of 700 the collector takes a tenth of the time.
    gc.set_threshold(200_000)
    # Otherwise pydantic reads the metadata of every installed package at every start to find plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.unraisablehook = raise_again
    try:
        from gemmaspec.cli.app import run

        # Docker's SDK imports it, which takes longer than the rest of the SDK, and needs it only without ssh.
        on_first_use("paramiko")
        code = run(sys.argv[1:])
        # What is left runs no code of ours: a Ctrl-C ends the process at once, and no traceback of Python's own exit.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:  # while modules are imported, or a second Ctrl-C during the message about the first
        code = _INTERRUPTED
    gc.freeze()  # the interpreter ends: nothing that is left needs to be searched for cycles
    if code == _INTERRUPTED:
        _exit_interrupted()
    sys.exit(code)


def _exit_interrupted() -> None:
    """Exit with 130, wherever the interrupt came.

    One that comes while a string is executed, as each new dataclass does, makes `python -m gemmaspec` end by SIGINT at
    its exit, though it was caught (run_eval_code_obj in Python/pythonrun.c, seen with 3.11). os._exit does not look.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
