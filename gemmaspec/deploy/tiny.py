"""Making tiny models."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from typing import Final

from gemmaspec.deploy.models import MAKER
from gemmaspec.engine.server import Server
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.files import state_dir

_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]{1,80})'")


def make_tiny(server: Server, names: Sequence[str]) -> None:
    """Make them with the interpreter or image that will serve them, because both have torch and transformers.

    Raises EnvironmentMissing if that fails.
    """
    tiny = state_dir() / "tiny"
    tiny.mkdir(parents=True, exist_ok=True)
    own = (str(server.python), str(MAKER), str(tiny), *names)
    done = subprocess.run(
        own if server.python else _in_container(server.image or "", tiny, names),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise _not_made(server, done.stderr.strip().splitlines())


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


def _in_container(image: str, tiny: os.PathLike[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the `docker run` command that makes them; it mounts the maker's folder at /gemmaspec/tiny."""
    mounts = (
        f"type=bind,source={MAKER.parent},target=/gemmaspec/tiny,readonly",
        f"type=bind,source={tiny},target=/tiny",
    )
    options = ("--network", "none", "--entrypoint", "python3", "--user", f"{os.getuid()}:{os.getgid()}")
    mounted = (word for mount in mounts for word in ("--mount", mount))
    return ("docker", "run", "--rm", *options, *mounted, image, f"/gemmaspec/tiny/{MAKER.name}", "/tiny", *names)
