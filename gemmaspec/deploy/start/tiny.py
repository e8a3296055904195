"""Making tiny models."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gemmaspec.data import MAKER
from gemmaspec.engine.server import Server
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.files import make_folder, state_dir

_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]{1,80})'")


def make_tiny(server: Server, names: Sequence[str]) -> None:
    """Make them with the interpreter or image that will serve them, because both have torch and transformers.

    Raises EnvironmentMissing if that fails.
    """
    tiny = state_dir() / "tiny"
    make_folder(tiny)
    code, said = _as_process(server.python, tiny, names) if server.python else _in_container(server, tiny, names)
    if code:
        raise _not_made(server, said)


def _as_process(python: Path, tiny: Path, names: Sequence[str]) -> tuple[int, list[str]]:
    own = (str(python), str(MAKER), str(tiny), *names)
    done = subprocess.run(own, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.strip().splitlines()


def _in_container(server: Server, tiny: Path, names: Sequence[str]) -> tuple[int, list[str]]:
    """Run the maker in a container of the image, which sees the maker's folder as /gemmaspec/tiny."""
    from gemmaspec.engine.once import SharedFolder, run_once  # Docker's SDK is slow to import

    mounts = (
        SharedFolder(folder=MAKER.parent, at="/gemmaspec/tiny", read_only=True),
        SharedFolder(folder=tiny, at="/tiny"),
    )
    return run_once(server.image or "", "python3", (f"/gemmaspec/tiny/{MAKER.name}", "/tiny", *names), mounts)


def _not_made(server: Server, said: list[str]) -> EnvironmentMissing:
    """Return the error of a maker that failed; a traceback is cut to its last line."""
    where = str(server.python or server.image)
    missing = _MODULE.search(said[-1]) if said else None
    if missing:
        return EnvironmentMissing(
            f"cannot make the tiny models: {where} has no {missing[1]}",
            hint="remove runtime.python from the profile, so that gemmaspec builds an environment that has it"
            if server.python
            else "gemmaspec doctor tiny-cpu",
        )
    last = said[-1:] if any(line.startswith("Traceback") for line in said) else said[-8:]
    return EnvironmentMissing("\n".join([f"cannot make the tiny models with {where}:", *last]))
