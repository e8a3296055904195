"""What `up --dry-run` prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from gemmaspec.cli.text import page
from gemmaspec.run.stack.speed import NO_GPU

if TYPE_CHECKING:
    from gemmaspec.core.patching.choice import Choices
    from gemmaspec.run.kept.stacks import Started
    from gemmaspec.serve.dry_run import DryRun

_NAMES: Final = 7
"""Letters of the column of names."""
_NAMED: Final = 3
"""Patches for speed that a line names; of more it says how many."""


def dry_run(plan: DryRun, *, as_json: bool) -> None:
    """Print what `up --dry-run` would do."""
    rows = chain(_change_rows(plan), _server_rows(plan))
    page.answer({"ok": True, **_document(plan)}, page.rows_below(rows, names=_NAMES, indent=0), as_json=as_json)


def _document(plan: DryRun) -> dict[str, object]:
    """Return it as `--json` prints it."""
    start = plan.start
    changes = {
        "engine": start.engine,
        "why": start.why,
        "joins": start.joins,
        "stops": _stops(plan),
        "instead_of": _instead_of(plan),
        "ahead": plan.ahead,
        "files": [str(start.server.folder / name) for name in sorted(start.files)],
    }
    runs = {
        "command": shlex.join(start.command),
        "environment": start.environment,
        "hosts": start.started.options.hosts,
        "offline": start.offline,
        "expects": start.expects,
    }
    return {
        **changes,
        **runs,
        "graphs": plan.graphs,
        "gpu": plan.no_gpu,
        "memory": plan.memory,
        "speed_patches": tuple(plan.speed.taken),
        "left_out": plan.speed.left_out,
        "runs_code_of": plan.code,
        "notes": [finding.document() for finding in plan.costs],
    }


def _stops(plan: DryRun) -> str | None:
    """Return the server that would be stopped first; None without one."""
    if not plan.start.replaces or not plan.start.replaces.started:
        return None
    return _described(plan.start.replaces.started)


def _instead_of(plan: DryRun) -> str | None:
    """Return the server of another profile that would be stopped; None without one."""
    if plan.instead_of:
        return _described(plan.instead_of)
    return None


def _described(started: Started) -> str:
    return f"{started.server.name} ({started.engine}, port {started.server.port})"


def _instead_rows(plan: DryRun) -> Iterator[page.Row]:
    """Yield which server of another profile would be stopped, what is taken over from it, and the way back."""
    if plan.instead_of is None:
        return
    before, server = plan.instead_of.server, plan.start.server
    yield "stop:", f"{_described(plan.instead_of)}, once what {server.name} needs is in place"
    if before.port == server.port:
        yield "takes:", f"port {server.port} of {before.name}"
    yield "back:", f"{before.name} runs again if {server.name} does not answer"


def _change_rows(plan: DryRun) -> Iterator[page.Row]:
    """Yield where it would run, and what it would stop, fetch and write."""
    start = plan.start
    yield "engine:", start.why
    for rank, host in enumerate(start.started.options.hosts):
        yield "host:", f"{host} (rank {rank})"
    if start.joins:
        yield "runs:", "already, unchanged; only the probe would be sent"
    yield "stop:", _stops(plan)
    yield from _instead_rows(plan)
    if plan.ahead:
        for part in plan.ahead.parts:
            verb = "fetch" if part.verb == "download" else part.verb
            yield f"{verb}:", str(part)
        yield "time:", plan.ahead.time()
    if start.files:
        folders = sorted({str((start.server.folder / name).parent) for name in start.files})
        yield "write:", f"{len(start.files)} files in {', '.join(folders)}"


def _server_rows(plan: DryRun) -> Iterator[page.Row]:
    """Yield what the server would run with, and what is known of its speed and memory."""
    start = plan.start
    yield "env:", f"sets or passes on {', '.join(start.environment) or 'no variables'}"
    if start.offline != "no":
        yield "hub:", f"not used by the server ({start.offline})"
    yield "speed:", speed_line(start.server.name, plan.speed, plan.untried)
    for line in plan.no_gpu:
        yield "gpu:", f"WARNING: {line}"
    for line in plan.graphs:
        yield "graphs:", f"WARNING: {line}"
    for line in plan.memory:
        yield "memory:", f"WARNING: it does not fit: {line}"
    for finding in plan.costs:
        yield "note:", f"{finding.code}: {finding.key or 'profile'}: {finding.message}; {finding.fix}"
    yield "code:", f"runs code of: {', '.join(plan.code) or 'vllm as it is installed'}"
    yield "run:", shlex.join(start.command)
    yield "ready:", f"when {start.expects}"


def speed_line(name: str, choice: Choices, untried: Sequence[str]) -> str:
    """Return which patches for speed a start takes, and the next command; "" where none is for such a machine.

    The reasons for what is left out are in `--json`.
    """
    taken = _taken(name, choice)
    if untried:
        count = f"{len(untried)} patch{'es' if len(untried) > 1 else ''}"
        return f"{taken or 'no patch'}; {count} not measured on this GPU: gemmaspec patch measure {name}"
    if taken or not choice.left_out or all(why.startswith(NO_GPU) for why in choice.left_out.values()):
        return taken
    return "no patch, because none was measured with a server like this; where each was: gemmaspec patch list"


def _taken(name: str, choice: Choices) -> str:
    """Return the names of the patches that are taken and why; of many, how many there are."""
    if len(choice.taken) > _NAMED:
        return f"{len(choice.taken)} patches, which gemmaspec up {name} --dry-run --json names"
    words = []
    for patch in choice.taken:
        reason = choice.because.get(patch)
        words.append(f"{patch} ({reason})" if reason else patch)
    return ", ".join(words)
