"""Choose the engine of a stack if the user does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from gemmaspec.core.errors import EnvironmentMissing, UsageError
from gemmaspec.core.profile.command import can_be_process
from gemmaspec.core.profile.engines import ENGINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.run.engine.server import Engine, EngineName, Node, Server

if TYPE_CHECKING:
    from gemmaspec.run.engine.docker import DockerEngine
    from gemmaspec.run.engine.fleet import FleetEngine


def choose_engine(
    forced: EngineName | None, *, runs_on: EngineName | None = None, profile: Profile | None = None
) -> tuple[Engine, str]:
    """Return the engine and the reason in one sentence: docker if its daemon answers, else process.

    An image that is not here and in no registry leaves the process engine to a profile that can run there. A running
    stack stays on the engine that it `runs_on`, unless another is forced. Raise EnvironmentMissing if docker is forced,
    or the only engine for `profile`, and does not answer.
    """
    if runs_on and not forced:
        return engine_named(runs_on), f"{runs_on}: the server already runs there (override with --engine)"
    if forced and not ENGINES[forced].needs_daemon:
        return engine_named(forced), f"{forced}: chosen with --engine"
    docker = cast("DockerEngine", engine_named("docker"))
    try:
        version = docker.ping()
    except EnvironmentMissing as missing:
        if forced:
            raise
        if profile and not can_be_process(profile):
            why = f"{profile.name} can only run in docker, because it sets no runtime.vllm for a process"
            raise EnvironmentMissing(f"{missing.message}; {why}", hint=missing.hint) from None
        return engine_named("process"), f"process: {missing.message}"
    if profile and not forced and can_be_process(profile):
        lacking = _lacking_image(docker, profile)
        if lacking:
            docker.close()
            return engine_named("process"), f"process: {lacking}"
    if forced:
        why = "chosen with --engine"
    else:
        why = "its daemon answers"
    return docker, f"docker: {why}, version {version} at {docker.endpoint}"


def _lacking_image(docker: DockerEngine, profile: Profile) -> str:
    """Return why docker cannot run a profile whose image is neither here nor in a registry; '' if it can."""
    from gemmaspec.run.engine.pulling import not_pulled_here

    image = profile.image
    if not image or not not_pulled_here(image) or docker.image_facts("", image):
        return ""
    return f"docker answers, but the image {image} is not on this machine, and no registry has it"


def engine_with(name: EngineName, nodes: Sequence[Node]) -> Engine:
    """Return the engine that a server was started with: of this name, or of these machines where it spans several."""
    if nodes:
        return engine_of_nodes(nodes)
    return engine_named(name)


def engine_named(name: EngineName) -> Engine:
    """Return the engine of that name, without checking whether it is usable."""
    match name:
        case "process":
            from gemmaspec.run.engine.process import ProcessEngine

            return ProcessEngine()
        case "docker":
            from gemmaspec.run.engine.docker import DockerEngine  # its SDK is slow to import

            return DockerEngine()


def engine_of_nodes(nodes: Sequence[Node]) -> FleetEngine:
    """Return the engine of a server on these machines, without checking whether they answer."""
    from gemmaspec.run.engine.fleet import FleetEngine  # docker's SDK is slow to import

    return FleetEngine(nodes)


def engine_on(nodes: Sequence[Node], *, forced: EngineName | None, profile: str) -> tuple[Engine, str]:
    """Return the engine of a server on several machines, and why it is used. `profile` is what was typed."""
    if forced and not ENGINES[forced].spans_machines:
        raise UsageError(
            f"{profile} runs on several machines, and --engine {forced} starts on this one alone",
            hint=f"gemmaspec up {profile}",
        )
    ranks = ", ".join(f"{node.host} (rank {rank})" for rank, node in enumerate(nodes))
    return engine_of_nodes(nodes), f"docker: on {len(nodes)} machines: {ranks}"


def seats(engine: Engine, server: Server) -> list[tuple[str, Engine, Server]]:
    """Return each rank's host with its own engine and server; one with the host "" for a server on one machine."""
    if not server.nodes:
        return [("", engine, server)]
    from gemmaspec.run.engine.fleet import FleetEngine

    assert isinstance(engine, FleetEngine)
    return [(member.host, member.engine, member.server) for member in engine.members(server)]
