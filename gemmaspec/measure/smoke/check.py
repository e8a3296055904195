"""What a check is: requests, what they need of the server, and a judge over the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from gemmaspec.core.live.verdict import Word
from gemmaspec.run.engine.answer import ChatAnswer, Fault

SHORTEST_LINE: Final = 160
"""Characters of an answer that a row shows."""


class Need(StrEnum):
    """What a check needs; the text says what is missing where the server does not offer it."""

    THINKING = "the profile sets no chat.reasoning_parser"
    TOOLS = "the profile sets no chat.tool_call_parser"
    IMAGES = "the profile allows no images"
    DRAFT = "the server does not speculate"
    CACHE = "the profile turns the prefix cache off"
    REFERENCE = "no reference without speculation: name one with --against"
    LONG = "long prompts may take minutes: run with --only S19"


@dataclass(frozen=True, kw_only=True)
class ServerOffer:
    """What the server offers, and what is known of it."""

    model: str
    """The served model's name."""
    lacks: frozenset[Need] = frozenset()
    together: int = 8
    """Requests that are sent at once: 8, or as many as the server runs."""
    max_len: int = 131_072
    """Longest context, in tokens."""
    entry_tokens: float = 32.0
    """Tokens of an entry of the logbook that fills long prompts, by the server's own count."""
    stored_length: float | None = None
    """The acceptance length that was measured with this profile on this machine, or is published for it."""
    versions: tuple[str, ...] = ()
    """The vLLM that the server and the launcher's report name; one of them where they agree."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request."""

    key: str
    """Unique within its check."""
    body: Mapping[str, Any]
    """The request's JSON, without `model` unless it is to be another one."""
    alone: bool = False
    """Sent with nothing else in flight; otherwise together with those of all checks."""

    @property
    def streams(self) -> bool:
        """Whether the answer comes as a stream."""
        return bool(self.body.get("stream"))

    @property
    def max_tokens(self) -> int:
        """The longest answer, in tokens."""
        return int(self.body["max_tokens"])


@dataclass(frozen=True, kw_only=True)
class Received:
    """What a check has to judge by."""

    offer: ServerOffer
    asks: Sequence[Ask]
    answers: Mapping[str, ChatAnswer]
    """By the key of the request; one for each."""
    reference: Mapping[str, ChatAnswer] = field(default_factory=dict)
    """What a server without speculation answered to the same requests."""

    def pairs(self, *, alone: bool | None = None) -> list[tuple[Ask, ChatAnswer]]:
        """Return requests with their answers, all or only those of one kind."""
        pairs = []
        for ask in self.asks:
            if alone is None or ask.alone == alone:
                pairs.append((ask, self.answers[ask.key]))
        return pairs


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a judge says."""

    word: Word
    seen: str
    """What was seen, in one line."""
    key: str | None = None
    """The request that shows it."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check."""

    id: str
    name: str
    asks: Callable[[ServerOffer], Sequence[Ask]]
    judge: Callable[[Received], Judged]
    fix: str
    """What to do when it fails: a flag, a patch, a release."""
    needs: frozenset[Need] = frozenset()
    counts: bool = True
    """Whether a failure fails the run; otherwise it is a warning."""
    judges: frozenset[Fault] = frozenset()
    """Faults that are for this check's own judge to judge."""


Work = tuple[Callable[[ServerOffer], Sequence[Ask]], Callable[[Received], Judged]]
"""What a check asks, and its judge."""
_FAILURES: Final = {
    Fault.FAILED: "the request failed inside the server",
    Fault.BROKEN_OFF: "the server broke off in the middle of the answer",
    Fault.MALFORMED: "the answer is malformed",
    Fault.HUGE: "the answer is longer than the request allows",
}
_UNKNOWN: Final = {
    Fault.REFUSED: "the server refuses the request",
    Fault.UNREACHABLE: "the server cannot be reached",
    Fault.ENDLESS: "the answer did not end within its time limit",
    Fault.NOT_ASKED: "not asked, because --timeout was reached",
}


def judged(check: Check, received: Received) -> Judged:
    """Return what a check says of its answers. Faults come first: an answer that did not come is never a pass."""
    faults = []
    for ask, answer in received.pairs():
        if answer.fault and answer.fault not in check.judges:
            faults.append((ask, answer, answer.fault))
    for words, word in ((_FAILURES, "fail"), (_UNKNOWN, "unknown")):
        for ask, answer, fault in faults:
            if fault in words:
                text = f"{words[fault]}{f': {shown(answer.said)}' if answer.said else ''}"
                return Judged(word=word, seen=text, key=ask.key)  # type: ignore[arg-type]
    return check.judge(received)


def skipped(check: Check, offer: ServerOffer) -> str | None:
    """Return why a check is left out; None if the server offers what it needs."""
    for need in Need:
        if need in check.needs and need in offer.lacks:
            return str(need)
    return None


def passed(seen: str) -> Judged:
    """Return a pass."""
    return Judged(word="pass", seen=seen)


def failed(seen: str, key: str) -> Judged:
    """Return a failure that this request shows."""
    return Judged(word="fail", seen=seen, key=key)


def unknown(seen: str, key: str | None = None) -> Judged:
    """Return that the answers do not decide it."""
    return Judged(word="unknown", seen=seen, key=key)


def shown(text: str, most: int = SHORTEST_LINE) -> str:
    """Return a text as a row shows it: one line without control characters, shortened in its middle."""
    line = "".join(map(_printable, text[:20_000].replace("\n", "⏎")))
    if len(line) <= most and len(text) <= 20_000:
        return line
    half = most // 2 - 1
    tail = "".join(map(_printable, text[-half:]))
    return f"{line[:half]} … {tail}"


def _printable(letter: str) -> str:
    return letter if letter.isprintable() else " "


def where(ask: Ask) -> str:
    """Return how a request was sent, in two words."""
    return f"{'streamed' if ask.streams else 'not streamed'}, {'alone' if ask.alone else 'with others'}"
