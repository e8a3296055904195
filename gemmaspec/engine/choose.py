"""Which engine runs a stack when the user does not say."""

from __future__ import annotations

from gemmaspec.engine.process import ProcessEngine
from gemmaspec.engine.server import Engine, EngineName
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.profile.model import Profile
from gemmaspec.profile.runs import can_be_process


def choose_engine(
    forced: EngineName | None, *, runs_on: EngineName | None = None, profile: Profile | None = None
) -> tuple[Engine, str]:
    """Return the engine and, in one sentence, why: docker when its daemon answers, else a process.

    A stack that runs stays on the engine that it `runs_on`, unless one is forced. Raise EnvironmentMissing when
    docker is forced, or is all that can run `profile`, and does not answer.
    """
    if runs_on and not forced:
        return engine_named(runs_on), f"{runs_on}: it runs there now (--engine changes that)"
    if forced == "process":
        return ProcessEngine(), "process: chosen by you"
    from gemmaspec.engine.docker import DockerEngine

    docker = DockerEngine()
    try:
        version = docker.ping()
    except EnvironmentMissing as missing:
        if forced == "docker":
            raise
        if profile and not can_be_process(profile):
            why = f"{profile.name} can only run in docker, because it names no vLLM for a process (runtime.vllm)"
            raise EnvironmentMissing(f"{missing.message}; {why}", hint=missing.hint) from None
        return ProcessEngine(), f"process: {missing.message}"
    why = "chosen by you" if forced else "its daemon answers"
    return docker, f"docker: {why}, version {version} at {docker.endpoint}"


def engine_named(name: EngineName) -> Engine:
    """Return the engine of that name, without asking whether it can be used."""
    if name == "process":
        return ProcessEngine()
    from gemmaspec.engine.docker import DockerEngine  # its SDK is slow to import

    return DockerEngine()
