"""Print results of starts, for people and as JSON."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gemmaspec.cli import output
from gemmaspec.run.kept.attention import graphs_lost, of_running

if TYPE_CHECKING:
    from gemmaspec.run.engine.server import Server
    from gemmaspec.run.kept.stacks import Started
    from gemmaspec.run.kept.verdicts import Last, Watching
    from gemmaspec.run.ready.first_request import Answer
    from gemmaspec.serve.starting import Running


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


def running(result: Running, *, as_json: bool, last: Last | None = None) -> bool:
    """Print the result of `up` after the server has answered, and return whether all is well with it.

    `status` adds the last verdicts.
    """
    server, ready = result.started.server, result.ready
    got = of_running(result.started)
    lost = graphs_lost(result.started, got)
    fine = lost is None or not lost.hurts
    if as_json:
        document = _running_document(result) | {"graphs": lost, "report": result.report}
        if last:
            document |= verdict_document(last)
        output.json_data(document)
        return fine
    if result.was_running:
        since = "was already running"
    else:
        since = f"after {ready.seconds:.1f} s"
    if fine:
        word = "ready"
    else:
        word = "degraded: it answers, and drafts without CUDA graphs"
    output.told(f"{server.name} is {word} ({result.started.engine}, {since})")
    output.told(f"  address   {server.base_url}/v1   model {server.model}")
    if hosts := result.started.options.hosts:
        ranks = ", ".join(f"{host} (rank {rank})" for rank, host in enumerate(hosts))
        output.told(f"  machines  {ranks}: the same plan and files on {len(hosts)} of {len(hosts)}")
    report_lines(result.report)
    if got.backends:
        output.told(f"  attention {', '.join(got.backends)} (logged)")
    for line in (*filter(None, (lost,)), *got.warnings):
        output.told(f"  WARNING   {line}")
    for line in answer_lines(ready.answer, looks_up=server.looks_up):
        output.told(f"  {line}")
    output.told(f"  ask       {_curl(server)}")
    if result.is_toy:
        output.told("  toy       a tiny model that knows a few dozen sentences about itself, and one tool: get_weather")
    output.told("  clients   gemmaspec connect")
    output.told(*verdict_lines(last))
    if lost:
        output.told(f"  next      {lost.next}")
    return fine


def _curl(server: Server) -> str:
    """Return a command that asks the server something which even a tiny model can answer."""
    from gemmaspec.measure.smoke.row import body_text, curl

    body = body_text({"messages": [{"role": "user", "content": "Hello"}]}, model=server.model)
    return curl(server.base_url, body, file=None, key=server.needs_api_key, streams=False)


def detached(started: Started, *, as_json: bool, last: Last) -> None:
    """Print what `up --detach` has started, and the verdicts of its last start."""
    server = started.server
    last = dataclasses.replace(last, beside_log=())  # a watch that has just been started has written nothing yet
    if as_json:
        facts = {
            "name": server.name,
            "engine": started.engine,
            "address": f"{server.base_url}/v1",
            "model": server.model,
        }
        output.json_data({"ok": True, "detached": True, **facts, **verdict_document(last)})
        return
    output.told(f"{server.name} is starting ({started.engine}, port {server.port})")
    output.told(*verdict_lines(last))
    output.progress(f"  next: gemmaspec status {server.name} --wait    # or: gemmaspec status {server.name}")


def answer_lines(answer: Answer, *, looks_up: bool = False) -> Iterator[str]:
    """Yield one answer in two or three lines."""
    yield f"answer    {_clipped(answer.text)}"
    speed = f"{answer.tokens_per_second:.1f} tokens/s"
    yield f"speed     {answer.completion_tokens} tokens in {answer.seconds:.2f} s, {speed}"
    if answer.acceptance_length is not None:
        yield (
            f"drafted   {answer.draft_tokens} tokens in {answer.drafts} drafts, "
            f"{answer.accepted_tokens} accepted: acceptance length {answer.acceptance_length:.2f}"
        )
    elif looks_up:
        yield "drafted   nothing for this question: this method drafts what a text repeats"


def report_lines(report: dict[str, Any] | None) -> None:
    """Print what the launcher reported."""
    try:
        lines = list(_of_report(report)) if report else []
    except (KeyError, TypeError, AttributeError, ValueError):
        lines = ["  WARNING   the launcher's report is damaged"]
    output.told(*lines)


def _of_report(report: dict[str, Any]) -> Iterator[str]:
    vllm = report["vllm"]
    if report["overlay"]:
        overlay = f"overlay built in {report['overlay_ms']:.0f} ms"
    else:
        overlay = "no overlay"
    yield f"  vllm      {vllm['version']} at {vllm['path']}, {overlay}"
    for need in report["requires"]:
        yield f"  runtime   {need['name']} {need['found']} ({need['state']}, {need['specifier']})"
    for index, patch in enumerate(report["patches"]):
        yield f"  {'patches' if index == 0 else '':<9} {patch['patch']:<28} {patch['state']:<11} {_why(patch)}"
    yield from _attested(report)
    edited = {file["path"] for patch in report["patches"] for file in patch["files"] if file.get("pristine") is False}
    for path in sorted(edited):
        yield f"  WARNING   {path} differs from vllm {vllm['version']} as released: another build, or edited"


def _why(patch: Mapping[str, Any]) -> str:
    """Return where a patch is, why it was left out, or what its probe saw of a vLLM that was not patched."""
    if patch["state"] == "left-out":
        return f"for speed: {patch['detail']}"
    if patch.get("judged") or (patch["state"] == "not-needed" and patch["detail"]):
        return str(patch["detail"])
    return ", ".join(
        (f"{file['path']}:{file['line']}" if file["line"] else str(file["path"])) for file in patch["files"]
    )


def _attested(report: dict[str, Any]) -> Iterator[str]:
    """Yield whether the processes run the patched functions, and which plugins of others run in them."""
    attested = report.get("attested")
    if attested:
        if attested["state"] == "attested":
            marked = "attested "
        else:
            marked = "WARNING  "
        titles = ", ".join(process["title"] for process in attested["processes"])
        text = attested["text"].removeprefix("attested: ")
        yield f"  {marked} {text}{f': {titles}' if attested['state'] == 'attested' else ''}"
        yield from (f"            {note}" for note in attested["notes"])
    for plugin in (report.get("attestation") or {}).get("plugins", ()):
        if plugin["loaded"]:
            loaded = ""
        else:
            loaded = ", kept out by VLLM_PLUGINS"
        yield f"  plugin    {plugin['name']} ({plugin['value']}) of {plugin['distribution']}{loaded}"


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


def verdict_lines(last: Last | None) -> Iterator[str]:
    """Return a line for each command that has a verdict."""
    if last and last.smoke:
        if last.smoke_is_of_this_start:
            before = ""
        else:
            before = ", before the last start"
        yield f"  smoke     {last.smoke.line()}, {ago(last.smoke.at)}{before}"
    if last and last.watch:
        yield f"  watch     {_watching(last.watch)}"
    if last and last.beside:
        yield f"  watch     in its container: {_watching(last.beside)}"
    if last and last.beside_log:
        following = f"{last.beside_again}    # log: {' '.join(last.beside_log)}"
        yield f"  watch     in its container: does not run, or has written nothing; next: {following}"


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
