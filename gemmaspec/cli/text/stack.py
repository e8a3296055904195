"""Print results of starts, for people and as JSON."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gemmaspec.cli import output
from gemmaspec.cli.text import page
from gemmaspec.run.kept.attention import graphs_lost, of_running

if TYPE_CHECKING:
    from gemmaspec.run.engine.server import Server
    from gemmaspec.run.kept.attention import Graphs, Logged
    from gemmaspec.run.kept.stacks import Started
    from gemmaspec.run.kept.verdicts import Last, Watching
    from gemmaspec.run.ready.first_request import Answer
    from gemmaspec.serve.starting import Running


def running(result: Running, *, as_json: bool, last: Last | None = None) -> bool:
    """Print the result of `up` after the server has answered, and return whether all is well with it.

    `status` adds the last verdicts.
    """
    got = of_running(result.started)
    lost = graphs_lost(result.started, got, profile=result.profile)
    fine = lost is None or not lost.hurts
    document = _running_document(result) | {"graphs": lost, "report": result.report}
    if last:
        document |= verdict_document(last)
    rows = _running_rows(result, got, lost, last)
    page.answer(document, page.lines(_running_title(result, fine=fine), rows, names=page.NAMES), as_json=as_json)
    return fine


def _running_document(result: Running) -> dict[str, Any]:
    server, ready = result.started.server, result.ready
    phases = {str(phase): round(seconds, 1) for phase, seconds in ready.phases.items()}
    return {
        "ok": True,
        "name": server.name,
        "engine": result.started.engine,
        "address": f"{server.base_url}/v1",
        "model": server.model,
        "hosts": list(result.started.options.hosts),
        "seconds": round(ready.seconds, 1),
        "phases": phases,
        "answer": ready.answer,
    }


def _running_title(result: Running, *, fine: bool) -> str:
    word, since = "ready", f"after {result.ready.seconds:.1f} s"
    if not fine:
        word = "degraded: it answers, and drafts without CUDA graphs"
    if result.was_running:
        since = "was already running"
    return f"{result.started.server.name} is {word} ({result.started.engine}, {since})"


def _running_rows(result: Running, got: Logged, lost: Graphs | None, last: Last | None) -> Iterator[page.Row]:
    server, hosts = result.started.server, result.started.options.hosts
    yield "address", f"{server.base_url}/v1   model {server.model}"
    if hosts:
        ranks = ", ".join(f"{host} (rank {rank})" for rank, host in enumerate(hosts))
        yield "machines", f"{ranks}: the same plan and files on {len(hosts)} of {len(hosts)}"
    yield from report_rows(result.report)
    yield from logged_rows(got, lost)
    yield from answer_rows(result.ready.answer, looks_up=server.looks_up)
    yield "ask", _curl(server)
    if result.is_toy:
        yield "toy", "a tiny model that knows a few dozen sentences about itself, and one tool: get_weather"
    yield "clients", "gemmaspec connect"
    yield from verdict_rows(last)
    if lost:
        yield "next", lost.next


def logged_rows(got: Logged, lost: Graphs | None) -> Iterator[page.Row]:
    """Yield the attention that the log names, and what it warns of."""
    if got.backends:
        yield "attention", f"{', '.join(got.backends)} (logged)"
    if lost:
        yield "WARNING", str(lost)
    for warning in got.warnings:
        yield "WARNING", str(warning)


def _curl(server: Server) -> str:
    """Return a command that asks the server something which even a tiny model can answer."""
    from gemmaspec.measure.smoke.row import body_text, curl

    body = body_text({"messages": [{"role": "user", "content": "Hello"}]}, model=server.model)
    return curl(server.base_url, body, file=None, key=server.needs_api_key, streams=False)


def detached(started: Started, *, as_json: bool, last: Last) -> None:
    """Print what `up --detach` has started, and the verdicts of its last start."""
    server = started.server
    last = dataclasses.replace(last, beside_log=())  # a watch that has just been started has written nothing yet
    document = {
        "ok": True,
        "detached": True,
        "name": server.name,
        "engine": started.engine,
        "address": f"{server.base_url}/v1",
        "model": server.model,
        **verdict_document(last),
    }
    title = f"{server.name} is starting ({started.engine}, port {server.port})"
    page.answer(document, page.lines(title, verdict_rows(last), names=page.NAMES), as_json=as_json)
    if not as_json:
        output.progress(f"  next: gemmaspec status {server.name} --wait    # or: gemmaspec status {server.name}")


def answer_rows(answer: Answer, *, looks_up: bool = False) -> Iterator[page.Row]:
    """Yield one answer in two or three rows."""
    yield "answer", _clipped(answer.text)
    speed = f"{answer.tokens_per_second:.1f} tokens/s"
    yield "speed", f"{answer.completion_tokens} tokens in {answer.seconds:.2f} s, {speed}"
    if answer.acceptance_length is not None:
        drafted = f"{answer.draft_tokens} tokens in {answer.drafts} drafts, {answer.accepted_tokens} accepted"
        yield "drafted", f"{drafted}: acceptance length {answer.acceptance_length:.2f}"
    elif looks_up:
        yield "drafted", "nothing for this question: this method drafts what a text repeats"


def report_rows(report: Mapping[str, Any] | None) -> list[page.Row]:
    """Return what the launcher reported."""
    if not report:
        return []
    try:
        return list(_of_report(report))
    except (KeyError, TypeError, AttributeError, ValueError):
        return [("WARNING", "the launcher's report is damaged")]


def _of_report(report: Mapping[str, Any]) -> Iterator[page.Row]:
    vllm = report["vllm"]
    overlay = "no overlay"
    if report["overlay"]:
        overlay = f"overlay built in {report['overlay_ms']:.0f} ms"
    yield "vllm", f"{vllm['version']} at {vllm['path']}, {overlay}"
    for need in report["requires"]:
        yield "runtime", f"{need['name']} {need['found']} ({need['state']}, {need['specifier']})"
    patches = [f"{patch['patch']:<28} {patch['state']:<11} {_why(patch)}" for patch in report["patches"]]
    yield from page.named("patches", patches)
    yield from _attested(report)
    edited: set[str] = set()
    for patch in report["patches"]:
        edited |= {file["path"] for file in patch["files"] if file.get("pristine") is False}
    for path in sorted(edited):
        yield "WARNING", f"{path} differs from vllm {vllm['version']} as released: another build, or edited"


def _why(patch: Mapping[str, Any]) -> str:
    """Return where a patch is, why it was left out, or what its probe saw of a vLLM that was not patched."""
    if patch["state"] == "left-out":
        return f"for speed: {patch['detail']}"
    if patch.get("judged") or (patch["state"] == "not-needed" and patch["detail"]):
        return str(patch["detail"])
    places = []
    for file in patch["files"]:
        places.append(f"{file['path']}:{file['line']}" if file["line"] else str(file["path"]))
    return ", ".join(places)


def _attested(report: Mapping[str, Any]) -> Iterator[page.Row]:
    """Yield whether the processes run the patched functions, and which plugins of others run in them."""
    attested = report.get("attested")
    if attested:
        text = attested["text"].removeprefix("attested: ")
        if attested["state"] == "attested":
            titles = ", ".join(process["title"] for process in attested["processes"])
            yield "attested", f"{text}: {titles}"
        else:
            yield "WARNING", text
        for note in attested["notes"]:
            yield "", note
    for plugin in (report.get("attestation") or {}).get("plugins", ()):
        loaded = "" if plugin["loaded"] else ", kept out by VLLM_PLUGINS"
        yield "plugin", f"{plugin['name']} ({plugin['value']}) of {plugin['distribution']}{loaded}"


def _clipped(text: str) -> str:
    line = " ".join(text.split())
    if len(line) <= 100:
        return line
    return f"{line[:99]}…"


def ago(moment: float | None) -> str:
    """Return how long ago something was, in the largest unit that says enough."""
    if moment is None:
        return "-"
    seconds = max(0, int(time.time() - moment))
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def verdict_rows(last: Last | None) -> Iterator[page.Row]:
    """Yield a row for each command that has a verdict."""
    if last and last.smoke:
        before = "" if last.smoke_is_of_this_start else ", before the last start"
        yield "smoke", f"{last.smoke.line()}, {ago(last.smoke.at)}{before}"
    if last and last.watch:
        yield "watch", _watching(last.watch)
    if last and last.beside:
        yield "watch", f"in its container: {_watching(last.beside)}"
    if last and last.beside_log:
        following = f"{last.beside_again}    # log: {' '.join(last.beside_log)}"
        yield "watch", f"in its container: does not run, or has written nothing; next: {following}"


def _watching(watching: Watching) -> str:
    faults = ", ".join(f"{kind} since {ago(began)}" for kind, began in watching.active.items()) or "no fault"
    if watching.looks:
        runs = f"looked {ago(watching.at)}"
    else:
        runs = f"ended; it looked last {ago(watching.at)}"
    done = f"; {watching.last}" if watching.last else ""
    if watching.unknown:
        missing = f"; not judged: {', '.join(watching.unknown)}"
    else:
        missing = ""
    if watching.attested:
        attested = f", {watching.attested}"
    else:
        attested = ""
    return f"{faults}, {runs}{attested}{done}{missing}"


def verdict_document(last: Last | None) -> dict[str, Any]:
    """Return the verdicts for machines."""
    smoke: dict[str, Any] | None = None
    watch: dict[str, Any] | None = None
    beside: dict[str, Any] | None = None
    if last and last.smoke:
        smoke = vars(last.smoke) | {"verdict": last.smoke.line(), "of_this_start": last.smoke_is_of_this_start}
    if last and last.watch:
        watch = vars(last.watch) | {"watches": last.watch.looks}
    if last and last.beside:
        beside = vars(last.beside) | {"watches": last.beside.looks}
    elif last and last.beside_log:  # its container does not answer, so its log is what is left of it
        beside = {"watches": False, "log": list(last.beside_log)}
    return {"smoke": smoke, "watch": watch, "watch_container": beside}
