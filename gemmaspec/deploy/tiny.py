"""Making the tiny pair, where a profile uses it and it is not there."""

from __future__ import annotations

import os
import subprocess

from gemmaspec.deploy.models import MAKER, models_of
from gemmaspec.engine.server import Server
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.files import state_dir
from gemmaspec.profile.model import Profile


def wants_tiny(profile: Profile) -> bool:
    """Whether a profile uses the tiny pair and it has not been made yet."""
    return any(one.is_tiny and not (one.folder / "config.json").is_file() for one in models_of(profile))


def make_tiny(server: Server) -> None:
    """Make it with the interpreter or in the image that will serve it: both have what it takes."""
    tiny = state_dir() / "tiny"
    tiny.mkdir(parents=True, exist_ok=True)
    own = (str(server.python), str(MAKER), str(tiny))
    done = subprocess.run(
        own if server.python else _in_container(server.image or "", tiny), capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise EnvironmentMissing(f"the tiny models could not be made:\n{last}")


def _in_container(image: str, tiny: os.PathLike[str]) -> tuple[str, ...]:
    mounts = (f"type=bind,source={MAKER},target=/make.py,readonly", f"type=bind,source={tiny},target=/tiny")
    options = ("--network", "none", "--entrypoint", "python3", "--user", f"{os.getuid()}:{os.getgid()}")
    mounted = (word for mount in mounts for word in ("--mount", mount))
    return ("docker", "run", "--rm", *options, *mounted, image, "/make.py", "/tiny")
