"""Compare the ranks of a server on several machines, before any of them imports vLLM. Standard library, Python 3.10+.

Rank 0 listens on the master address, one port above vLLM's master port. Every other rank connects and sends one line of
JSON: its rank, its node, and facts about what it is about to run. When all ranks are there, rank 0 compares their facts
with its own and sends every rank the same answer. A rank that fails before that says so instead, and then none starts.
Facts are versions, digests, revisions and arguments, no secrets. Nothing is authenticated: a peer can stop a start, and
can make none run code. Everything that is read has a limit in bytes and in time.

launch.py loads this file from its own folder when the command has --nnodes; the facts are those of rank_facts.py. Start
at `meet`.
"""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

LINE_LIMIT = 256 * 1024  # bytes of a message; a plan's facts have some kilobytes
TALK_S = 10.0  # how long a peer may take to say its line, or to read the answer
FAREWELL_S = 30.0  # how long a rank that cannot start tries to tell the others
MOST_SPEAKING = 32  # connections that have not said who they are
MOST_LINES = 20  # differences that are told
TEXT_LIMIT = 400  # characters of a fact, a node or a line
MOST_FACTS = 2000
SHOWN_EVERY_S = 30.0
CODES = {0: "same", 5: "different", 6: "failed", 7: "timeout"}
MAYBE_UNKNOWN = ("target", "draft")  # facts that a node without a local copy of the model lacks
DIGEST = re.compile("[0-9a-f]{64}")
Say = Callable[[str], None]


class Invalid(ValueError):
    """A command or a message that cannot be used; the text says why."""


@dataclass(frozen=True)
class Place:
    """Where this process stands among the ranks, as vLLM's own flags say."""

    rank: int
    nodes: int
    master: str
    port: int
    """The port of the comparison: one above vLLM's master port."""

    @property
    def meeting(self) -> str:
        """The address of the comparison, for messages."""
        return f"[{self.master}]:{self.port}" if ":" in self.master else f"{self.master}:{self.port}"


@dataclass(frozen=True)
class Card:
    """What a rank says of itself: facts by name, or why it cannot start."""

    rank: int
    node: str
    facts: Mapping[str, str] = field(default_factory=dict)
    failed: str = ""
    code: int = 6
    """With `failed`: the exit code of the others, 5 for what does not fit and 6 for anything else."""

    @property
    def title(self) -> str:
        """The rank and its node, for messages."""
        return f"rank {self.rank} ({self.node})"


@dataclass(frozen=True)
class Answer:
    """How the comparison ended: the exit code (0 to go on), lines that say why not, and the nodes by rank."""

    code: int
    lines: tuple[str, ...] = ()
    nodes: Mapping[int, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The outcome in one word, for the report."""
        return CODES.get(self.code, "failed")


def place_of(given: Mapping[str, str]) -> Place | None:
    """Return the place that a command's arguments name; None for a server on one machine. Raise Invalid."""
    nodes = _number(given, ("--nnodes", "-n"), 1)
    if nodes < 2:
        return None
    rank, port = _number(given, ("--node-rank", "-r"), 0), _number(given, ("--master-port",), 29501)
    if rank >= nodes:
        raise Invalid(f"--node-rank is {rank}, and the ranks of {nodes} nodes are 0 to {nodes - 1}")
    if not 1 <= port <= 65534:
        raise Invalid(f"--master-port is {port}, and the ranks need it and the next one")
    master = given.get("--master-addr", "")
    if not master:
        raise Invalid("--master-addr is missing: the ranks would look for each other on 127.0.0.1")
    return Place(rank=rank, nodes=nodes, master=master, port=port + 1)


def meet(place: Place, card: Card, *, wait_s: float, say: Say) -> Answer:
    """Compare this rank with the others; return the same answer as every other rank gets.

    Waits at most `wait_s` seconds for the others, or FAREWELL_S if this rank cannot start.
    """
    until = time.monotonic() + (min(wait_s, FAREWELL_S) if card.failed else wait_s)
    if place.rank:
        return _follow(place, card, until, say)
    with contextlib.ExitStack() as stack:
        listener = _listen(place, until)
        if isinstance(listener, Answer):
            return listener
        stack.callback(listener.close)
        return _Table(place, card, listener, say).wait(until)


def differences(mine: Card, other: Card) -> list[str]:
    """Return a line for each fact in which a rank differs from rank 0."""
    found = []
    for name in sorted({*mine.facts, *other.facts}):
        wanted, has = mine.facts.get(name, ""), other.facts.get(name, "")
        if wanted == has or (name in MAYBE_UNKNOWN and not (wanted and has)):
            continue
        found.append(f"{other.title} differs from {mine.title} in {name}: {_shown(has)}, not {_shown(wanted)}")
    return found


class _Table:
    """Rank 0's side: who has come, and what each said."""

    def __init__(self, place: Place, card: Card, listener: socket.socket, say: Say) -> None:
        self.place, self.card, self.listener, self.say = place, card, listener, say
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.speaking: dict[socket.socket, tuple[float, bytes]] = {}
        self.seated: dict[int, tuple[socket.socket, Card]] = {}

    def wait(self, until: float) -> Answer:
        """Wait for every rank, answer all of them, and return the answer."""
        try:
            self._gather(until)
            answer = self._judge()
            return self._tell(answer)
        finally:
            for connection in (*self.speaking, *(one for one, _ in self.seated.values())):
                connection.close()
            self.selector.close()

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self.place.nodes) if rank not in self.seated]

    def _gather(self, until: float) -> None:
        shown = 0.0
        while self._missing() and not any(card.failed for _, card in self.seated.values()):
            now = time.monotonic()
            if now >= until:
                return
            if now - shown >= SHOWN_EVERY_S:
                shown = now
                names = ", ".join(map(str, self._missing()))
                self.say(f"rank 0 waits for rank {names} at {self.place.meeting}")
            for key, _ in self.selector.select(min(until - now, 0.5)):
                self._accept() if key.fileobj is self.listener else self._hear(key.fileobj)  # type: ignore[arg-type]
            for connection, (since, _) in list(self.speaking.items()):
                if time.monotonic() - since > TALK_S:
                    self._drop(connection, "sent nothing")

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        if len(self.speaking) >= MOST_SPEAKING:
            self._drop(next(iter(self.speaking)), "was the oldest of too many connections")
        self.speaking[connection] = (time.monotonic(), b"")
        self.selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if connection not in self.speaking:
            self._unseat(connection)
            return
        since, before = self.speaking[connection]
        text = before + data
        if len(text) > LINE_LIMIT:
            self._drop(connection, f"sent more than {LINE_LIMIT} bytes")
        elif b"\n" in text:
            self._seat(connection, text.partition(b"\n")[0])
        elif not data:
            self._drop(connection, "sent nothing" if not text else "broke off")
        else:
            self.speaking[connection] = (since, text)

    def _seat(self, connection: socket.socket, line: bytes) -> None:
        try:
            card = parse_card(line, self.place.nodes)
        except Invalid as error:
            self._refuse(connection, f"rank 0 cannot use this line: {error}")
            self._drop(connection, f"sent an invalid line: {error}")
            return
        if card.rank in self.seated:
            node = self.seated[card.rank][1].node
            why = f"rank {card.rank} is already connected: {node}; each host has a rank of its own"
            self.say(f"WARNING: {card.title} connected too, but {why}")
            self._refuse(connection, why)
            self._drop(connection, "")
            return
        del self.speaking[connection]
        self.seated[card.rank] = (connection, card)
        self.say(f"{card.title} is connected")

    def _refuse(self, connection: socket.socket, why: str) -> None:
        """Tell a peer that it is none of the ranks, so that a real one does not come again and again."""
        with contextlib.suppress(OSError):
            _send(connection, {"gemmaspec": 1, "code": 6, "lines": [why], "nodes": {}})

    def _unseat(self, connection: socket.socket) -> None:
        """Forget a rank that went away, or that goes on talking; it may come again."""
        for rank, (one, card) in list(self.seated.items()):
            if one is connection:
                del self.seated[rank]
                self.say(f"WARNING: {card.title} disconnected before the comparison; waiting for it again")
        self.selector.unregister(connection)
        connection.close()

    def _drop(self, connection: socket.socket, why: str) -> None:
        if why:
            self.say(f"WARNING: closed a connection to {self.place.meeting} that {why}")
        self.speaking.pop(connection, None)
        self.selector.unregister(connection)
        connection.close()

    def _judge(self) -> Answer:
        nodes = {0: self.card.node, **{rank: card.node for rank, (_, card) in sorted(self.seated.items())}}
        cards = [self.card, *(card for _, (_, card) in sorted(self.seated.items()))]
        failed = [card for card in cards if card.failed]
        if failed:
            lines = [f"{card.title} cannot start: {card.failed}" for card in failed]
            return Answer(code=min(card.code for card in failed), lines=tuple(lines), nodes=nodes)
        if missing := self._missing():
            names = ", ".join(map(str, missing))
            line = (
                f"rank {names} did not connect to {self.place.meeting}: is it started, and can it reach this address?"
            )
            return Answer(code=7, lines=(line,), nodes=nodes)
        lines = [line for card in cards[1:] for line in differences(self.card, card)]
        more = [f"and {len(lines) - MOST_LINES} more differences"] if len(lines) > MOST_LINES else []
        return Answer(code=5 if lines else 0, lines=(*lines[:MOST_LINES], *more), nodes=nodes)

    def _tell(self, answer: Answer) -> Answer:
        message = {"gemmaspec": 1, "code": answer.code, "lines": [line[:TEXT_LIMIT] for line in answer.lines]}
        message["nodes"] = {str(rank): node for rank, node in answer.nodes.items()}
        lost = []
        for connection, card in self.seated.values():
            try:
                _send(connection, message)
            except OSError:
                lost.append(f"{card.title} disconnected during the comparison")
        return replace(answer, code=6, lines=tuple(lost)) if lost and answer.code == 0 else answer


def _listen(place: Place, until: float) -> socket.socket | Answer:
    """Return the listening socket. A name that does not resolve yet is asked for again: a cluster's comes late."""
    while True:
        try:
            found = socket.getaddrinfo(place.master, place.port, type=socket.SOCK_STREAM)
            return socket.create_server(found[0][4][:2], family=found[0][0], backlog=16)
        except socket.gaierror as error:
            if time.monotonic() >= until:
                return Answer(code=6, lines=(f"rank 0 cannot resolve {place.master}: {error.strerror}",))
            time.sleep(0.5)
        except OSError as error:
            line = f"rank 0 cannot listen at {place.meeting}: {error.strerror}; is this an address of this machine?"
            return Answer(code=6, lines=(line,))


def _follow(place: Place, card: Card, until: float, say: Say) -> Answer:
    """Return rank 0's answer; connect again until it is there."""
    message = {"gemmaspec": 1, "rank": card.rank, "node": card.node, "facts": dict(card.facts)}
    message |= {"failed": card.failed[:TEXT_LIMIT], "code": card.code, "nodes": place.nodes}
    shown = why = ""
    while time.monotonic() < until:
        if not shown:
            shown = f"rank {card.rank} waits for rank 0 at {place.meeting}"
            say(shown)
        try:
            left = max(0.1, until - time.monotonic())
            with socket.create_connection((place.master, place.port), timeout=min(5.0, left)) as connection:
                _send(connection, message)
                line = _line(connection, until)
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
        except Invalid as error:
            return Answer(code=6, lines=(f"what listens at {place.meeting} is not rank 0: it {error}",))
        else:
            if line is not None:
                return _answer_of(line, place)
            why = "it closed the connection without an answer"
        time.sleep(0.2)
    return Answer(code=7, lines=(f"rank 0 did not answer at {place.meeting}: {why or 'no connection'}",))


def _answer_of(line: bytes, place: Place) -> Answer:
    try:
        return parse_answer(line)
    except Invalid as error:
        return Answer(
            code=6, lines=(f"what listens at {place.meeting} is not rank 0: it sent an invalid line: {error}",)
        )


def parse_card(line: bytes, nodes: int) -> Card:
    """Return what a rank said. Raise Invalid for anything but a rank of this server."""
    data = _object(line)
    rank, code = data.get("rank"), data.get("code", 6)
    if type(rank) is not int or not 1 <= rank < nodes:
        raise Invalid(f"its rank is not one of 1 to {nodes - 1}")
    if data.get("nodes", nodes) != nodes:
        raise Invalid("it belongs to a server with another number of nodes")
    facts = data.get("facts", {})
    if not isinstance(facts, dict) or len(facts) > MOST_FACTS:
        raise Invalid("its facts are not an object of a usual size")
    checked = {_text(name, "a fact's name"): _text(value, "a fact") for name, value in facts.items()}
    failed = _text(data.get("failed", ""), "its reason")
    return Card(rank, _text(data.get("node", ""), "its node") or "?", checked, failed, 5 if code == 5 else 6)


def parse_answer(line: bytes) -> Answer:
    """Return rank 0's answer. Raise Invalid for anything else."""
    data = _object(line)
    code, lines, nodes = data.get("code"), data.get("lines"), data.get("nodes")
    if type(code) is not int or code not in CODES:
        raise Invalid("its code is unknown")
    if not isinstance(lines, list) or len(lines) > MOST_LINES + 1 or not isinstance(nodes, dict) or len(nodes) > 64:
        raise Invalid("its lines or nodes are not of a usual size")
    if not all(re.fullmatch("[0-9]{1,3}", rank) for rank in nodes):
        raise Invalid("its nodes are not by rank")
    texts = tuple(_text(text, "a line") for text in lines)
    return Answer(code, texts, {int(rank): _text(node, "a node") for rank, node in nodes.items()})


def _object(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise Invalid("it is not JSON") from None
    if not isinstance(data, dict) or data.get("gemmaspec") != 1:
        raise Invalid("it is not of this version of the launcher")
    return data


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > TEXT_LIMIT:
        raise Invalid(f"{what} is not a text of at most {TEXT_LIMIT} characters")
    return value


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.settimeout(TALK_S)
    connection.sendall(json.dumps(message).encode() + b"\n")


def _line(connection: socket.socket, until: float) -> bytes | None:
    """Return one line; None if the connection ends before it. Raise Invalid for too much, OSError for too late."""
    text = b""
    while b"\n" not in text:
        connection.settimeout(max(0.1, until - time.monotonic()))
        data = connection.recv(65536)
        if not data:
            return None
        text += data
        if len(text) > LINE_LIMIT:
            raise Invalid(f"sent more than {LINE_LIMIT} bytes")
    return text.partition(b"\n")[0]


def _number(given: Mapping[str, str], names: Sequence[str], default: int) -> int:
    for name in names:
        if name in given:
            if not re.fullmatch("[0-9]{1,6}", given[name]):
                raise Invalid(f"{name} is {given[name]!r}, not a number")
            return int(given[name])
    return default


def _shown(value: str) -> str:
    return value[:12] + "…" if DIGEST.fullmatch(value) else value or "not there"
