"""What a container of a stack runs, as a script of a shell: for schedulers that take an image and no Compose file."""

from __future__ import annotations

import shlex

from gemmaspec.core.profile.load import Loaded
from gemmaspec.run.stack.compose import container_environment, launcher_command
from gemmaspec.run.stack.paths import container_paths
from gemmaspec.run.stack.serve import served_at


def start_script(loaded: Loaded) -> str:
    """Return the script. It expects the stack's folder at /gemmaspec, and /var/tmp and /run/gemmaspec to be writable.

    Variables of `pass_env` are not in it: they come from whoever starts it.
    """
    profile = loaded.profile
    served = served_at(profile, container_paths(profile))
    variables = container_environment(profile, served).items()
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables]
    lines.append(f"exec {shlex.join([*launcher_command(profile), *served.command])}")
    return "\n".join(["#!/bin/sh", *lines, ""])
