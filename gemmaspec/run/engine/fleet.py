"""One server on several docker daemons, as one engine: all ranks start, run and stop together."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, StartFailed
from gemmaspec.core.fleet.agree import hosts_disagree, images_disagree
from gemmaspec.core.fleet.reports import reports_disagree
from gemmaspec.run.engine.docker import DockerEngine
from gemmaspec.run.engine.lines import host_line
from gemmaspec.run.engine.merged import merged
from gemmaspec.run.engine.server import EngineName, Node, Runs, Server, State
from gemmaspec.run.engine.together import together

T = TypeVar("T")

LOOK_S: Final = 8.0
"""Seconds in which every daemon must say how its rank is; the wait for a start allows ten for all of it."""
REPORT_TRIES: Final = 3
REPORT_WAIT_S: Final = 1.0
ASK_S: Final = 45.0
"""Seconds for the questions before a start, over ssh too."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One rank of a server: its host, its daemon, and the server as that daemon runs it."""

    rank: int
    node: Node
    engine: DockerEngine
    server: Server

    @property
    def host(self) -> str:
        """The host's name in fleet.yaml."""
        return self.node.host


class FleetEngine:
    """Runs a server on several machines, one Compose project on each; the order of the nodes is the rank."""

    name: EngineName = "docker"
    remote = True

    def __init__(self, nodes: Sequence[Node], *, look_s: float = LOOK_S) -> None:
        """Use the daemons of these hosts; `look_s`: seconds in which each must say how its rank is."""
        self._look_s = look_s
        self._engines = [DockerEngine(node) for node in nodes]
        self._nodes = tuple(nodes)
        self._ahead: dict[str, float] = {}

    def close(self) -> None:
        """Close the connections to all daemons."""
        for engine in self._engines:
            engine.close()

    def members(self, server: Server) -> list[Member]:
        """Return the ranks of a server, rank 0 first."""
        return [
            Member(
                rank=rank,
                node=node,
                engine=engine,
                server=dataclasses.replace(server, nodes=(), compose_file=node.compose_file),
            )
            for rank, (node, engine) in enumerate(zip(self._nodes, self._engines, strict=True))
        ]

    def data_root(self) -> Path | None:
        """Return None: the images are on the hosts."""
        return None

    def start_command(self, server: Server) -> tuple[str, ...]:
        """Return the command of rank 0; every other host gets the same with its own file."""
        head = self.members(server)[0]
        return head.engine.start_command(head.server)

    def preflight(self, server: Server, *, port_is_free: bool = False) -> None:
        """Raise EnvironmentMissing if a host is missing something, or the hosts do not fit together."""
        members = self.members(server)
        facts = _all(members, lambda member: member.engine.facts(member.host), seconds=ASK_S)
        self._ahead = {fact.host: fact.ahead_s for fact in facts}
        if wrong := hosts_disagree(facts):
            raise wrong
        # Without a bound, because it may pull an image.
        _all(members, lambda peer: peer.engine.preflight(peer.server, port_is_free=port_is_free or peer.rank > 0))
        image = server.image or ""
        images = _all(members, lambda member: member.engine.image_facts(member.host, image), seconds=ASK_S)
        if wrong := images_disagree(image, [image_facts for image_facts in images if image_facts]):
            raise wrong

    def start(self, server: Server) -> None:
        """Start every rank: all files are on all hosts before the first one starts. After a failure, none runs."""
        members = self.members(server)
        try:
            _all(members, lambda member: member.engine.create(member.server))
            _all(members, lambda member: member.engine.start_created(member.server))
        except GemmaspecError as error:
            left = [_of_host(*failure).message for failure in _failures(_stopped(members)).items()]
            unknown = (f"{message}; what runs there is unknown" for message in left)
            raise error.amended("\n".join((error.message, *unknown))) from None
        except BaseException:  # Ctrl-C
            _stopped(members)
            raise

    def stop(self, server: Server) -> bool:
        """Stop every rank at the same time; return True if one was running.

        Raise EnvironmentMissing, once all others are stopped, for a host that did not answer.
        """
        done = _stopped(self.members(server))
        if failed := _failures(done):
            told = [f"{_of_host(host, error).message}; what runs there is unknown" for host, error in failed.items()]
            if stopped := ", ".join(host for host in done if host not in failed):
                told.append(f"{server.name} is stopped on {stopped}")
            raise EnvironmentMissing("\n".join(told), hint=f"gemmaspec down {server.name}    # once every host answers")
        return any(was is True for was in done.values())

    def state(self, server: Server) -> State:
        """Return one state for all ranks: a rank that has ended ends the server.

        Raise EnvironmentMissing if no rank is known to have ended and a host does not answer.
        """
        members = {member.host: member for member in self.members(server)}
        seen = self.states(server)
        known = {host: state for host, state in seen.items() if isinstance(state, State)}
        absent = all(state.status == "absent" for state in known.values())
        ended = [(members[host], state) for host, state in known.items() if state.status != "running"]
        if ended and not absent:
            member, state = min(ended, key=self._when)
            return dataclasses.replace(state, status="exited", detail=_told(member, state), host=member.host)
        for host, error in _failures(seen).items():
            raise _of_host(host, error)
        if absent:
            return State(status="absent")
        sick = next((host for host, state in known.items() if state.unhealthy), "")
        detail = ", ".join(f"{host}: {state.detail}" for host, state in known.items())
        return State(status="running", detail=detail, unhealthy=bool(sick), host=sick)

    def states(self, server: Server) -> dict[str, State | GemmaspecError]:
        """Return the state of each rank by host, or why it is unknown."""
        return together(
            {member.host: functools.partial(member.engine.state, member.server) for member in self.members(server)},
            seconds=self._look_s,
        )

    def ensure_answers(self, server: Server) -> None:
        """Raise StartFailed unless every rank runs, PatchConflict unless all launchers report the same."""
        seen = self.states(server)
        for peer in self.members(server):
            state = seen[peer.host]
            if isinstance(state, GemmaspecError):
                raise _of_host(peer.host, state)
            if state.status != "running":
                raise StartFailed(f"{_told(peer, state)}; a server on several machines needs all of them")
        reports = self.reports(server)
        for _ in range(REPORT_TRIES):  # docker on a busy machine may refuse to look into a container for a moment
            if all(reports.values()):
                break
            time.sleep(REPORT_WAIT_S)
            reports = self.reports(server)
        if wrong := reports_disagree(server.name, reports):
            raise wrong

    def reports(self, server: Server) -> dict[str, dict[str, Any] | None]:
        """Return each rank's report by host; None for one that is missing. Raise GemmaspecError as `report`."""
        members = self.members(server)
        reports = _all(members, lambda member: member.engine.report(member.server), seconds=self._look_s)
        return dict(zip([member.host for member in members], reports, strict=True))

    def runs(self, server: Server) -> Runs | None:
        """Return the command and image of rank 0."""
        head = self.members(server)[0]
        return head.engine.runs(head.server)

    def logs(self, server: Server, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yield the lines of all ranks, each with its host; with `follow`, as they come."""
        ranks = [functools.partial(_lines, member, follow=follow, tail=tail) for member in self.members(server)]
        yield from merged(ranks, follow=follow)

    def report(self, server: Server) -> dict[str, Any] | None:
        """Return the report of rank 0."""
        head = self.members(server)[0]
        return head.engine.report(head.server)

    def read(self, server: Server, path: str, *, service: str = "vllm") -> bytes | None:
        """Return a file as rank 0 sees it."""
        head = self.members(server)[0]
        return head.engine.read(head.server, path, service=service)

    def read_all(self, server: Server, paths: Sequence[str], *, service: str = "vllm") -> Mapping[str, bytes]:
        """Return files as rank 0 sees them."""
        head = self.members(server)[0]
        return head.engine.read_all(head.server, paths, service=service)

    def _when(self, ended: tuple[Member, State]) -> float:
        """Return when a rank ended by this machine's clock; a rank without a container ended before all others."""
        member, state = ended
        if state.status != "absent":
            return (state.ended or 0.0) - self._ahead.get(member.host, 0.0)
        return 0.0


def _all(members: Sequence[Member], call: Callable[[Member], T], *, seconds: float | None = None) -> list[T]:
    """Return the result of a call for each rank, made at the same time. Raise the first error by rank."""
    done = together({member.host: functools.partial(call, member) for member in members}, seconds=seconds)
    for host, error in _failures(done).items():
        raise _of_host(host, error)
    return [outcome for outcome in done.values() if not isinstance(outcome, GemmaspecError)]


def _failures(done: Mapping[str, object]) -> dict[str, GemmaspecError]:
    return {host: outcome for host, outcome in done.items() if isinstance(outcome, GemmaspecError)}


def _stopped(members: Sequence[Member]) -> dict[str, bool | GemmaspecError]:
    """Stop every rank at the same time, whatever runs; return by host whether it ran, or why it was not stopped."""
    return together({peer.host: functools.partial(peer.engine.stop, peer.server) for peer in members}, seconds=None)


def _of_host(host: str, error: GemmaspecError) -> GemmaspecError:
    """Return an error that names the host first, in its message and in a command of its hint."""
    if error.message.startswith(f"{host}: "):
        return error
    hint = f"{error.hint}    # on {host}" if error.hint and "#" not in error.hint else error.hint
    return error.amended(f"{host}: {error.message}", hint=hint)


def _told(member: Member, state: State) -> str:
    """Return which rank has ended, and how."""
    if state.status == "absent":
        how = "has no container"
    else:
        how = "has ended"
    return f"rank {member.rank} on {member.host} {how}{f' ({state.detail})' if state.detail else ''}"


def _lines(member: Member, *, follow: bool, tail: int | None) -> Iterator[str]:
    """Yield a rank's lines after its host's name; one that says so if its log cannot be read."""
    try:
        for line in member.engine.logs(member.server, follow=follow, tail=tail):
            yield host_line(member.host, line)
    except GemmaspecError as error:
        yield host_line(member.host, f"(its log cannot be read: {error.message})")
