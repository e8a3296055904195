"""Docker Compose v2 by its command line: the arguments, and the meaning of its failures."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, StartFailed
from gemmaspec.core.files import state_dir
from gemmaspec.core.waiting import WAITS
from gemmaspec.run.engine.lines import clean
from gemmaspec.run.engine.server import Server
from gemmaspec.run.stack.serve import SERVICE as WATCH

SERVICE: Final = "vllm"
"""The service that answers requests."""

NOWHERE: Final[Mapping[str, str]] = {}
"""No variables: the environment of this process chooses the daemon."""
REMOTE_S: Final = 300.0
"""Seconds that creating or starting a container on another machine may take; its image was pulled before."""
SLACK_S: Final = 60.0
"""Seconds beyond the grace period after which a daemon no longer stops a container."""

_INSTALL: Final = "sudo apt-get install docker-compose-plugin    # Ubuntu's own: docker-compose-v2"
_SHOWN_LINES: Final = 20
_MACHINE_FAULTS: Final = {
    "could not select device driver": "docker has no NVIDIA runtime",
    "port is already allocated": "the port is in use",
    "address already in use": "the port is in use",
    "no space left on device": "no space left on docker's disk",
    "no such image": "the image is missing",
}


_COMPOSE: Final[Mapping[str, tuple[str, ...]]] = {
    "up": ("up", "--detach", "--no-build", "--quiet-pull"),  # Compose does nothing if the same configuration runs
    "create": ("create", "--no-build"),  # so that files can be copied into its volume before it starts
    "start": ("start",),
    "watch": ("up", "--detach", "--no-build", "--no-deps", "--no-recreate", WATCH),  # and the server is left as it is
}


def args_of(server: Server, verb: str) -> tuple[str, ...]:
    """Return the command that starts in the background ("up"), creates, starts what was created, or starts a watch."""
    return (*_compose(server), "-f", str(file_of(server)), *_COMPOSE[verb])


def file_of(server: Server) -> Path:
    """Return the server's compose file."""
    return server.folder.absolute() / server.compose_file


def _compose(server: Server) -> tuple[str, ...]:
    return ("docker", "compose", "--ansi", "never", "-p", server.project)


def environment() -> dict[str, str]:
    """Return this process's environment, which Compose interpolates and passes on by name, plus GEMMASPEC_STATE.

    Compose's own COMPOSE_* variables are omitted, because they would add files, profiles or another project name.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSE_")}
    return kept | {"GEMMASPEC_STATE": str(state_dir())}


def act(server: Server, verb: str, where: Mapping[str, str] = NOWHERE, *, limit_s: float = REMOTE_S) -> None:
    """Run the command of `args_of`. Raise EnvironmentMissing for a problem of the machine, StartFailed otherwise.

    Raise EnvironmentMissing also if the daemon has not answered within five minutes, except while it may pull.
    """
    ensure_docker_cli()
    done = _run(args_of(server, verb), where, timeout_s=None if verb == "up" else limit_s)
    if done.returncode:
        raise why_not_up(server, done.stderr)


def stop(server: Server, where: Mapping[str, str] = NOWHERE) -> None:
    """Run `docker compose down`. Raise GemmaspecError with Compose's message.

    Raise EnvironmentMissing if the daemon has not stopped it within its grace period and a minute.
    """
    ensure_docker_cli()
    # everything with the project's label except volumes; compose.yaml is not read, so that a broken or deleted file or
    # an unset variable cannot keep a server running
    arguments = (*_compose(server), "down", "--remove-orphans", "--timeout", str(round(server.stop_grace_s)))
    done = _run(arguments, where, timeout_s=server.stop_grace_s + SLACK_S)
    if done.returncode:
        raise GemmaspecError(
            f"docker compose could not stop {server.project}: {_last_lines(done.stderr)}",
            hint=f"docker compose -p {server.project} ps --all",
        )


def why_not_up(server: Server, output: str) -> GemmaspecError:
    """Return the error for Compose's output on stderr."""
    text = _last_lines(output)
    hint = f"docker compose -p {server.project} ps --all"
    for phrase, meaning in _MACHINE_FAULTS.items():
        if phrase in output.lower():
            return EnvironmentMissing(
                f"docker compose could not start {server.name}, because {meaning}: {text}", hint=hint
            )
    return StartFailed(f"docker compose could not start {server.name}: {text}", hint=hint)


def ensure_docker_cli() -> None:
    """Raise EnvironmentMissing if the `docker` command is missing."""
    if not shutil.which("docker"):
        raise EnvironmentMissing(
            "the docker command is not installed",
            hint="sudo apt-get install docker.io    # or https://docs.docker.com/engine/install",
        )


def client_version() -> str:
    """Return the version of the `docker` command. Raise EnvironmentMissing if it is missing."""
    ensure_docker_cli()
    return _version(("docker", "--version")) or "of an unknown version"


def ensure_compose_v2() -> str:
    """Return the version of `docker compose`. Raise EnvironmentMissing if it is missing or older than 2."""
    ensure_docker_cli()
    version = _version(("docker", "compose", "version", "--short"))
    if version is not None and _major(version) >= 2:
        return version
    if version is not None:
        raise EnvironmentMissing(f"`docker compose` is version {version}; gemmaspec needs 2 or newer", hint=_INSTALL)
    if shutil.which("docker-compose"):
        old = _version(("docker-compose", "version", "--short"))
    else:
        old = None
    if old is None:
        raise EnvironmentMissing("`docker compose` fails: its plugin is missing", hint=_INSTALL)
    if _major(old) >= 2:
        why = f"Compose {old} is installed as docker-compose, but not as docker's plugin"
        raise EnvironmentMissing(why, hint=_INSTALL)
    raise EnvironmentMissing(f"only Compose v1 is installed (docker-compose {old}); gemmaspec needs v2", hint=_INSTALL)


def _version(command: Sequence[str]) -> str | None:
    """Return the version that a command prints; None if it fails."""
    done = _run(command)
    version = re.search(r"\d+(\.\d+)+[^\s,]*", done.stdout)
    if version and not done.returncode:
        return version.group()
    return None


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _run(
    command: Sequence[str], where: Mapping[str, str] = NOWHERE, *, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command from `/`, so that no file of the user's folder affects it.

    Raise EnvironmentMissing if it has not ended after `timeout_s` seconds; its processes are killed then.
    """
    process = subprocess.Popen(
        command, env=environment() | dict(where), cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding="utf-8", errors="replace", process_group=0 if timeout_s else None,
    )  # fmt: skip
    try:
        with WAITS.on(" ".join(command[:2])):
            out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        program, what = " ".join(command[:2]), " ".join(command[-3:])
        daemon = [f"{name}={value}" for name, value in where.items() if value]
        raise EnvironmentMissing(
            f"`{program}` did not end within {timeout_s:.0f} s: {what}", hint=" ".join([*daemon, "docker info"])
        ) from None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if timeout_s:  # it leads a process group of its own then
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
            process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _last_lines(output: str) -> str:
    kept = [clean(line).strip() for line in output.splitlines() if line.strip()][-_SHOWN_LINES:]
    return "\n".join(kept) or "(no output)"
