"""What `up --dry-run` prints."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gemmaspec.cli import output
from gemmaspec.run.stack.speed import NO_GPU

if TYPE_CHECKING:
    from gemmaspec.core.patching.choice import Choices
    from gemmaspec.serve.dry_run import DryRun

_NAMED: Final = 3
"""Patches for speed that a line names; of more it says how many."""


def dry_run(plan: DryRun, *, as_json: bool) -> None:
    """Print what `up --dry-run` would do."""
    if as_json:
        output.json_data({"ok": True, **_document(plan)})
        return
    _tell_changes(plan)
    _tell_server(plan)


def _document(plan: DryRun) -> dict[str, object]:
    """Return it as `--json` prints it."""
    start = plan.start
    changes = {
        "engine": start.engine,
        "why": start.why,
        "joins": start.joins,
        "stops": _stops(plan),
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
    before = plan.start.replaces.started
    return f"{before.server.name} ({before.engine}, port {before.server.port})"


def _tell_changes(plan: DryRun) -> None:
    """Print where it would run, and what it would stop, fetch and write."""
    start = plan.start
    output.told(f"engine: {start.why}")
    for rank, host in enumerate(start.started.options.hosts):
        output.told(f"host:   {host} (rank {rank})")
    if start.joins:
        output.told("runs:   already, unchanged; only the probe would be sent")
    if stopped := _stops(plan):
        output.told(f"stop:   {stopped}")
    if plan.ahead:
        for part in plan.ahead.parts:
            if part.verb == "download":
                verb = "fetch"
            else:
                verb = part.verb
            output.told(f"{verb + ':':<7} {part}")
        output.told(f"time:   {plan.ahead.time()}")
    if start.files:
        folders = sorted({str((start.server.folder / name).parent) for name in start.files})
        output.told(f"write:  {len(start.files)} files in {', '.join(folders)}")


def _tell_server(plan: DryRun) -> None:
    """Print what the server would run with, and what is known of its speed and memory."""
    start = plan.start
    output.told(f"env:    sets or passes on {', '.join(start.environment) or 'no variables'}")
    if start.offline != "no":
        output.told(f"hub:    not used by the server ({start.offline})")
    if line := speed_line(start.server.name, plan.speed, plan.untried):
        output.told(f"speed:  {line}")
    for line in plan.graphs:
        output.told(f"graphs: WARNING: {line}")
    for line in plan.memory:
        output.told(f"memory: WARNING: it does not fit: {line}")
    for finding in plan.costs:
        output.told(f"note:   {finding.code}: {finding.key or 'profile'}: {finding.message}; {finding.fix}")
    output.told(f"code:   runs code of: {', '.join(plan.code) or 'vllm as it is installed'}")
    output.told(f"run:    {shlex.join(start.command)}")
    output.told(f"ready:  when {start.expects}")


def speed_line(name: str, choice: Choices, untried: Sequence[str]) -> str:
    """Return which patches for speed a start takes, and the next command; "" where none is for such a machine.

    The reasons for what is left out are in `--json`.
    """
    taken = _taken(name, choice)
    if untried:
        count = f"{len(untried)} patch{'es' if len(untried) > 1 else ''}"
        return f"{taken or 'none'}; {count} not measured on this GPU: gemmaspec patch measure {name}"
    if taken or not choice.left_out or all(why.startswith(NO_GPU) for why in choice.left_out.values()):
        return taken
    return "none was measured with a server like this; where each was: gemmaspec patch list"


def _taken(name: str, choice: Choices) -> str:
    """Return the names of the patches that are taken and why; of many, how many there are."""
    if len(choice.taken) > _NAMED:
        return f"{len(choice.taken)} patches, which gemmaspec up {name} --dry-run --json names"
    words = []
    for patch in choice.taken:
        reason = choice.because.get(patch)
        words.append(f"{patch} ({reason})" if reason else patch)
    return ", ".join(words)
