"""Watch one server from a container next to it: report faults, tell a webhook, and set k to 0 where that is possible.

It has no Docker socket and no root: it cannot restart the server, and cannot see whether its process has exited. Its
own files, Python 3.10 and prometheus_client, with which vLLM writes /metrics, are all that it needs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.live.faults import Event, Faults, Limits, limits_of
from gemmaspec.core.live.reaction import Policy, reaction
from gemmaspec.core.webhooks import webhook
from gemmaspec.look.sidecar.asking import NoReading, ask, post, read
from gemmaspec.look.sidecar.known import KnownOfServer
from gemmaspec.look.sidecar.rounds import WatchLine, fault_event, go_round, one_round, watch_line
from gemmaspec.look.sidecar.telling import Telling


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """One server to watch. Nothing here is a secret."""

    stack: str
    address: str
    """The server on the stack's own network, such as http://vllm:8000."""
    model: str
    """The name under which it is served."""
    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    drafts_always: bool = False
    """Whether the server drafts in every step, be the text or the load what it may."""
    webhook: str | None = None


def settings_from(text: str) -> WatchSettings:
    """Return the settings in a file. Raises ValueError, KeyError, TypeError or AttributeError for any other."""
    document = json.loads(text)
    if document["schema"] != 1:
        raise ValueError("the settings have another schema")
    wish = dict(document["watch"])
    limits = limits_of(window_s=wish.pop("window_seconds"), hang_s=wish.pop("hang_seconds"))
    return WatchSettings(
        stack=document["stack"],
        address=document["address"],
        model=document["model"],
        drafts_always=document["drafts_always"],
        webhook=wish.pop("webhook"),
        policy=Policy(**wish),
        limits=limits,
    )


SETTINGS: Final = Path("/watch/settings.json")
SHARED: Final = Path("/run/gemmaspec-watch")
"""A folder in memory."""
VERDICT: Final = "watch.json"
WEBHOOK: Final = "GEMMASPEC_WEBHOOK"
INTERVAL_S: Final = 1.0
NO_REFERENCE: Final = "slower than off (needs step times, which gemmaspec watch on the host has)"
NO_PROCESS: Final = "gone (needs Docker, which gemmaspec watch on the host has)"


@dataclass(kw_only=True)
class Watcher(KnownOfServer):
    """One server under watch."""

    settings: WatchSettings
    shared: Path = SHARED
    webhook: str | None = None
    key: str | None = None
    has_answered: bool = False
    """False while the server still starts."""
    telling: Telling = dataclasses.field(default_factory=Telling)

    def look(self) -> Iterator[WatchLine]:
        """Read the server once, tell what is wrong, and yield the lines to log."""
        problems = self.telling.problems()
        return one_round(self, self.settings.stack, problems=problems, look=self._look(), keep=self._keep)

    def _look(self) -> Iterator[WatchLine]:
        try:
            sample = read(self.settings.address, key=self.key, model=self.settings.model)
        except NoReading as error:
            if self.missed() and self.has_answered:
                yield self._tell("unreachable", begins=True, reason=str(error))
            return
        if "unreachable" in self.since:
            yield self._tell("unreachable", begins=False, reason="the server answers again")
        for event in self.taken(sample):
            yield self._told(event)
        self.ask_if_silent(self._ask)
        self.has_answered = True

    def _ask(self) -> None:
        ask(self.settings.address, self.settings.model, key=self.key)

    def _told(self, event: Event) -> WatchLine:
        wish = reaction(event, self.settings.policy, restarts=(), now=0.0).action
        if wish == "report":
            note = ""
        else:
            note = "; not restarted: a container cannot restart its server"
            self.last = f"{event.kind}{note}"
        return self._tell(str(event.kind), begins=event.begins, reason=f"{event.reason}{note}")

    def _tell(self, fault: str, *, begins: bool, reason: str) -> WatchLine:
        self.mark(fault, begins=begins)
        if self.webhook:
            event = fault_event(self.settings.stack, fault, begins=begins, reason=reason)
            self.telling.hand_on(partial(post, self.webhook, event))
        return watch_line(self.settings.stack, "begins" if begins else "ends", fault=fault, reason=reason)

    def _keep(self) -> str:
        """Write down what is known, for `status` on the host. Return why that failed: a full disk ends no watch."""
        verdict = {
            "schema": 1,
            "at": time.time(),
            "active": self.since,
            "restarts": [],
            "last": self.last,
            "unknown": [NO_REFERENCE, NO_PROCESS],
            "interval": INTERVAL_S,
        }
        try:
            _replace(self.shared / VERDICT, verdict)
        except OSError as error:
            return f"cannot write {self.shared / VERDICT}: {error.strerror}"
        return ""


def _replace(file: Path, document: Mapping[str, Any]) -> None:
    fresh = file.with_name(f"{file.name}.new")
    fresh.write_text(json.dumps(document) + "\n", encoding="utf-8")
    fresh.replace(file)


def watcher(settings: WatchSettings, environment: Mapping[str, str]) -> Watcher:
    """Return the watch of a server. Raises ValueError for a webhook that nothing may be posted to."""
    address_line = environment.get(WEBHOOK)
    try:
        address = webhook(address_line) if address_line else settings.webhook
    except ValueError as error:
        raise ValueError(f"{WEBHOOK} {error}") from None
    return Watcher(
        settings=settings,
        webhook=address,
        key=environment.get("VLLM_API_KEY") or None,
        faults=Faults(limits=settings.limits, drafts_always=settings.drafts_always),
    )


def _duties(watch: Watcher) -> str:
    """Return what it may do, for the first line of its log."""
    wishes = ", ".join(f"{key} {value}" for key, value in dataclasses.asdict(watch.settings.policy).items())
    unjudged = f"{NO_REFERENCE}, {NO_PROCESS}"
    return f"{watch.settings.address}; can only report; not judged: {unjudged}; the profile wants {wishes}"


def main(arguments: Sequence[str] = ()) -> int:
    """Watch until the container is stopped. Return 2 for settings that are invalid.

    `arguments` may name another file of settings, and another folder to write into.
    """
    file = Path(arguments[0]) if arguments else SETTINGS
    shared = Path(arguments[1]) if len(arguments) > 1 else SHARED
    try:
        watch = watcher(settings_from(file.read_text(encoding="utf-8")), os.environ)
        watch.shared = shared
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"gemmaspec: cannot watch: {error}", file=sys.stderr)
        return 2
    _say(watch_line(watch.settings.stack, "watches", reason=_duties(watch)))
    go_round(watch.look, _say, interval_s=INTERVAL_S, over=threading.Event())
    return 0


def _say(line: WatchLine) -> None:
    print(json.dumps({"schema": 1, **dataclasses.asdict(line)}), flush=True)
