"""Making tiny models."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from gemmaspec.deploy.models import MAKER
from gemmaspec.engine.server import Server
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.files import state_dir


def make_tiny(server: Server, names: Sequence[str]) -> None:
    """Make them with the interpreter or in the image that will serve them: both have what it takes.

    Raises EnvironmentMissing when that fails.
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
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise EnvironmentMissing(f"the tiny models could not be made ({', '.join(names)}):\n{last}")


def _in_container(image: str, tiny: os.PathLike[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the `docker run` that makes them; the folder of the maker is /gemmaspec/tiny there."""
    mounts = (
        f"type=bind,source={MAKER.parent},target=/gemmaspec/tiny,readonly",
        f"type=bind,source={tiny},target=/tiny",
    )
    options = ("--network", "none", "--entrypoint", "python3", "--user", f"{os.getuid()}:{os.getgid()}")
    mounted = (word for mount in mounts for word in ("--mount", mount))
    return ("docker", "run", "--rm", *options, *mounted, image, f"/gemmaspec/tiny/{MAKER.name}", "/tiny", *names)
