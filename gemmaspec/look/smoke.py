"""`smoke`: ask a running server what is known to go wrong, and judge the answers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.files import write_whole
from gemmaspec.core.live.verdict import SmokeVerdict
from gemmaspec.core.profile.command import command_of
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.redact import redact
from gemmaspec.core.rows import Row
from gemmaspec.measure.chat import ChatAsking, ask_all
from gemmaspec.measure.counters import speculates
from gemmaspec.measure.lengths import served, version_in, version_of
from gemmaspec.measure.smoke.catalogue import CHECKS, budget_s, chosen
from gemmaspec.measure.smoke.check import Ask, Check, Need, Received, ServerOffer, judged, skipped
from gemmaspec.measure.smoke.questions import book
from gemmaspec.measure.smoke.row import LONGEST_BODY, SmokeRow, body_text, curl, fix_of, verdict_of
from gemmaspec.run.engine.answer import ChatAnswer
from gemmaspec.run.engine.http import exchange
from gemmaspec.run.engine.server import Server, server_at
from gemmaspec.run.kept import measurements, stacks
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.kept.verdicts import keep_smoke
from gemmaspec.run.ready.first_request import api_key_for
from gemmaspec.run.ready.logline import printable

TOGETHER: Final = 8
BODIES: Final = "smoke"
"""Folder of requests that are too long for a command line, in the stack's folder."""
_LOOK_S: Final = 10.0
_ENTRIES: Final = 20
_SPEED: Final = 30.0

Reference = Callable[[Sequence[Ask]], Mapping[str, ChatAnswer]]
"""Asks the same of a server that does not speculate, or of this one while it does not."""


@dataclass(frozen=True, kw_only=True)
class SmokeRequest:
    """What is to be checked, and how long it may take."""

    name: str
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    against: str | None = None
    """A stack's name or an address: a server without speculation to compare greedy texts with."""
    request_s: float = 120.0
    run_s: float = 600.0


@dataclass(frozen=True, kw_only=True)
class SmokeReport:
    """What a run came to."""

    rows: tuple[SmokeRow, ...]
    verdict: SmokeVerdict
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SmokeProgress:
    """Where a run tells what it does."""

    note: Callable[[str], None]
    asked: Callable[[int, int], None]
    """So many of so many requests have been answered."""


def smoke(request: SmokeRequest, progress: SmokeProgress, *, reference: Reference | None = None) -> SmokeReport:
    """Check a running server and keep the verdict in its stack's folder.

    `reference` asks a server without speculation; `request.against` names one. Raises UsageError for a stack that
    does not run, an unknown check or a refused API key, and what asking for the served model raises.
    """
    checks = chosen(only=request.only, skip=request.skip)
    started = _running(request.name)
    server, key = started.server, api_key_for(started.server)
    reference = reference or (_reference(request) if request.against else None)
    loaded = load_profile(started.profile, overrides=started.overrides, no_spec=started.no_spec)
    offer = _offer(started, loaded, key, reference=bool(reference), long="S19" in request.only)
    left_out = _left_out(request, loaded.profile)
    asked = [check for check in checks if check.id not in left_out and not skipped(check, offer)]
    asks = [(check, ask) for check in asked for ask in check.asks(offer)]
    seconds = budget_s(asked, offer, tokens_per_second=_SPEED)
    if len(asked) == 1:
        of_checks = "1 check"
    else:
        of_checks = f"{len(asked)} checks"
    if len(asks) == 1:
        of_requests = "1 request"
    else:
        of_requests = f"{len(asks)} requests"
    progress.note(
        f"{of_checks} with {of_requests}, {offer.together} at a time; "
        f"at {_SPEED:.0f} tokens/s at most {seconds:.0f} s, and the time for prompts"
    )
    began = time.monotonic()
    answers = _answers(request, server, key, [ask for _, ask in asks], together=offer.together, progress=progress)
    by_check: dict[str, dict[str, ChatAnswer]] = {check.id: {} for check in asked}
    for (check, ask), answer in zip(asks, answers, strict=True):
        by_check[check.id][ask.key] = answer
    rows = tuple(
        _row(check, offer, server, by_check.get(check.id), reference, left_out=left_out.get(check.id))
        for check in checks
    )
    vllm = offer.versions[0] if offer.versions else None
    verdict = verdict_of(rows, at=stacks.now(), since=started.since, vllm=vllm)
    if not (request.only or request.skip):
        keep_smoke(request.name, verdict)
    return SmokeReport(rows=rows, verdict=verdict, seconds=time.monotonic() - began)


def _left_out(request: SmokeRequest, profile: Profile) -> Mapping[str, str]:
    """Return the checks that the profile leaves out, and why. Raises UsageError where it names an unknown check."""
    named = profile.smoke.checks
    if named is None or request.only:
        return {}
    checks = {check.id for check in chosen(only=named, skip=())}
    why = f"the profile leaves it out{f': {profile.smoke.why}' if profile.smoke.why else ''}"
    return {check.id: why for check in CHECKS if check.id not in checks}


def _answers(
    request: SmokeRequest,
    server: Server,
    key: str | None,
    asks: Sequence[Ask],
    *,
    together: int,
    progress: SmokeProgress,
) -> Sequence[ChatAnswer]:
    """Send all requests and count them as they are answered."""
    done = 0

    def on_answer(_: Ask) -> None:
        nonlocal done
        done += 1
        progress.asked(done, len(asks))

    asking = ChatAsking(
        server=server,
        api_key=key,
        together=together,
        request_s=request.request_s,
        run_s=request.run_s,
        counted=True,
    )
    return ask_all(asking, asks, on_answer=on_answer)


def _running(name: str) -> Started:
    started = stacks.find(name)
    state = stacks.look(started)
    if state.status == "unknown":
        raise EnvironmentMissing(f"cannot tell whether {name} runs: {state.detail}", hint=state.hint)
    if state.status != "running":
        raise UsageError(f"{name} is not running", hint=started.again)
    return started


def _offer(started: Started, loaded: Loaded, key: str | None, *, reference: bool, long: bool) -> ServerOffer:
    """Return what a server offers, by its profile and its own words."""
    profile, server = loaded.profile, started.server
    model = served(server, key)
    lacks = set(_lacks(profile))
    if not server.speculates:
        lacks.add(Need.DRAFT)
    if not reference:
        lacks.add(Need.REFERENCE)
    if not long:
        lacks.add(Need.LONG)
    seen = [version.partition("+")[0] for version in (version_of(server, key), _reported(started)) if version]
    together = min(TOGETHER, profile.serve.max_num_seqs or TOGETHER)
    return ServerOffer(
        model=server.model,
        lacks=frozenset(lacks),
        together=together,
        max_len=model.max_model_len or ServerOffer.max_len,
        entry_tokens=_entry_tokens(server, key),
        stored_length=_stored_length(loaded),
        versions=tuple(dict.fromkeys(seen)),
    )


def _entry_tokens(server: Server, key: str | None) -> float:
    """Return how many tokens an entry of the logbook has, by the server's /tokenize."""
    with contextlib.suppress(GemmaspecError):
        asked = {"model": server.model, "prompt": book(_ENTRIES)}
        reply = exchange(server.base_url, "/tokenize", body=asked, timeout_s=_LOOK_S, api_key=key)
        document = reply.json() if reply.status == 200 else None
        if isinstance(document, dict):
            count = document.get("count")
        else:
            count = None
        if isinstance(count, int) and count > _ENTRIES:
            return count / _ENTRIES
    return ServerOffer.entry_tokens


def _lacks(profile: Profile) -> Sequence[Need]:
    """Return what a profile does not offer."""
    command = command_of(profile)
    limit = profile.serve.limit_mm_per_prompt or {}
    lacks = []
    if not command.given("--reasoning-parser"):
        lacks.append(Need.THINKING)
    if not command.given("--tool-call-parser"):
        lacks.append(Need.TOOLS)
    if command.switched("--language-model-only") or limit.get("image") == 0:
        lacks.append(Need.IMAGES)
    if command.switched("--enable-prefix-caching") is False:  # None: not given, and vLLM turns it on
        lacks.append(Need.CACHE)
    return lacks


def _stored_length(loaded: Loaded) -> float | None:
    """Return the acceptance length that bench has kept for this profile and k, else the published one, else None."""
    profile = loaded.profile
    spec = profile.speculative
    if spec is None:
        return None
    rows: Sequence[Row] = ()
    with contextlib.suppress(GemmaspecError):  # a damaged file is as good as none here; `predict` names it
        rows = measurements.of_plan(measurements.own_rows(loaded), measurements.taken_by(loaded.profile))
    k = spec.k_at(1)  # smoke asks one at a time what it counts
    lengths = [row.tokens_per_step for row in rows if row.method == spec.method and row.k == k and not row.by_lot]
    if lengths:
        return statistics.median(lengths)
    named = profile.measured if k == (spec.num_speculative_tokens or 0) else ()
    published = (cell for cell in named if cell.acceptance_length and not (cell.target or cell.draft))
    return next((cell.acceptance_length for cell in published), None)


def _reported(started: Started) -> str | None:
    """Return the release that the launcher's report names."""
    with contextlib.suppress(GemmaspecError):
        report = stacks.engine_of(started).report(started.server)
        if report:
            return version_in(report.get("vllm"))
        return None
    return None


def _reference(request: SmokeRequest) -> Reference:
    """Return what asks the server that --against names. Raises UsageError if that one speculates."""
    name = request.against or ""
    if "://" in name:
        server, key = server_at(name, option="--against", name=name), os.environ.get("VLLM_API_KEY") or None
    else:
        server = _running(name).server
        key = api_key_for(server)
    if speculates(server, timeout_s=_LOOK_S, api_key=key):
        raise UsageError(
            f"--against {name}: that server speculates too, so it is not a reference",
            hint="gemmaspec up PROFILE --no-spec",
        )
    model = served(server, key).name

    def ask(asks: Sequence[Ask]) -> Mapping[str, ChatAnswer]:
        there = dataclasses.replace(server, model=model)
        asking = ChatAsking(
            server=there, api_key=key, together=TOGETHER, request_s=request.request_s, run_s=request.run_s
        )
        answers = ask_all(asking, asks, on_answer=lambda _: None)
        return {ask.key: answer for ask, answer in zip(asks, answers, strict=True)}

    return ask


def _row(
    check: Check,
    offer: ServerOffer,
    server: Server,
    answers: Mapping[str, ChatAnswer] | None,
    reference: Reference | None,
    *,
    left_out: str | None,
) -> SmokeRow:
    if answers is None:
        why = left_out or skipped(check, offer) or ""
        return SmokeRow(id=check.id, name=check.name, word="skipped", counts=check.counts, seen=why)
    asks = check.asks(offer)
    if reference and Need.REFERENCE in check.needs:
        other = reference(asks)
    else:
        other = {}
    verdict = judged(check, Received(offer=offer, asks=asks, answers=answers, reference=other))
    ask = next((ask for ask in asks if ask.key == verdict.key), None)
    if ask and verdict.word == "fail":
        curl = _curl(check, ask, server)
    else:
        curl = None
    return SmokeRow(
        id=check.id,
        name=check.name,
        word=verdict.word,
        counts=check.counts,
        seen=redact(printable(verdict.seen)),
        curl=curl,
        fix=fix_of(check, verdict.word),
    )


def _curl(check: Check, ask: Ask, server: Server) -> str:
    """Return the command that shows a failure; a long request is written to a file of the stack's folder first."""
    body = body_text(ask.body, model=server.model)
    file: Path | None = None
    if len(body) > LONGEST_BODY:
        file = stacks.stack_folder(server.name) / BODIES / f"{check.id}.json"
        write_whole(file, body)
    return curl(server.base_url, body, file=str(file) if file else None, key=server.needs_api_key, streams=ask.streams)
