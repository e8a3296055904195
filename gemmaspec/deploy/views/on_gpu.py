"""A script of launcher/ that runs on the GPU, in the Python that would run vLLM: it has torch, this one has not."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from gemmaspec.deploy.views.doctor_subject import DoctorSubject
from gemmaspec.engine.server import Server
from gemmaspec.errors import EnvironmentMissing

_IN_CONTAINER: Final = "/gemmaspec/launcher"


def said_on_gpu(subject: DoctorSubject, server: Server, script: Path, *arguments: str, limit_s: int) -> list[str]:
    """Return the last lines that a script prints on stderr, in a container of the image or with the runtime's Python.

    `limit_s` is for a process; a container has half an hour. Raises EnvironmentMissing if it cannot be run.
    """
    if subject.runs_now:
        raise EnvironmentMissing("its server uses the GPU now", hint=f"gemmaspec down {server.name}")
    if subject.uses_docker:
        return _in_container(subject, server, script, arguments)
    if server.python is None or not server.python.exists():
        raise EnvironmentMissing("the environment with vLLM is missing", hint=f"gemmaspec pull {server.name}")
    command = (str(server.python), str(script), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        raise EnvironmentMissing(f"{server.python} cannot be run, or took more than {limit_s} s") from None
    return done.stderr.strip().splitlines()


def _in_container(subject: DoctorSubject, server: Server, script: Path, arguments: tuple[str, ...]) -> list[str]:
    if subject.image is None or subject.profile is None:
        raise EnvironmentMissing("the image is not on this machine", hint=f"gemmaspec pull {server.name}")
    if subject.engine.remote:
        raise EnvironmentMissing("the docker daemon is on another machine")
    from gemmaspec.engine.once import SharedFolder, run_once  # Docker's SDK is slow to import

    mounts = (SharedFolder(folder=script.parent, at=_IN_CONTAINER, read_only=True),)
    command = (f"{_IN_CONTAINER}/{script.name}", *arguments)
    return run_once(subject.image.id, subject.profile.container.python, command, mounts, gpus=True)[1]
