"""`gemmaspec bench`."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gemmaspec.cli import options, output
from gemmaspec.cli.text import page
from gemmaspec.core.errors import StartFailed, UsageError
from gemmaspec.measure.bench.places import places

if TYPE_CHECKING:
    from gemmaspec.measure.bench.settings import BenchRequest


def bench(
    context_: typer.Context,
    profile: options.OptionalProfile = None,
    ks: options.Drafts = None,
    patches: Annotated[str | None, options.option("--speed-patches")] = None,
    concurrencies: options.Concurrency = None,
    contexts: options.Context = None,
    categories: options.Category = None,
    prompts: options.Prompts = None,
    each: options.Each = None,
    max_tokens: options.MaxTokens = 128,
    ignore_eos: options.IgnoreEos = False,
    temperature: options.Temperature = 0.0,
    sample: options.Sample = False,
    rounds: Annotated[int, options.option("--rounds", min=1, max=20)] = 2,
    repeats: options.Repeats = 1,
    running: Annotated[bool, options.option("--running")] = False,
    url: Annotated[str | None, options.option("--url")] = None,
    replace: options.Replace = False,
    any_text: options.AcceptAnyText = False,
    dummy_weights: Annotated[bool, options.option("--dummy-weights")] = False,
    acceptance: Annotated[bool, options.option("--acceptance")] = False,
    out: options.OutFolder = None,
    resume: Annotated[Path | None, options.option("--resume")] = None,
    save_measured: Annotated[bool, options.option("--save-measured")] = False,
    save_ids: Annotated[Path | None, options.option("--save-ids")] = None,
    dry_run: options.DryRun = False,
    engine: options.Engine = None,
    overrides: options.Set = None,
    timeout_s: options.Timeout = 1800,
    request_timeout_s: options.RequestTimeout = 600,
    json: options.Json = False,
) -> None:
    """Measure a profile with and without speculation: tokens per second, step time, acceptance.

    Starts each as `up` does, measures every cell in both orders, and writes result.json and report.html to a folder.
    Ctrl-C keeps what was measured; --resume continues. Exit code 6 if a server does not start; the others are measured.
    """
    from gemmaspec.cli.text.progress import start_progress
    from gemmaspec.measure.bench.settings import BenchRequest
    from gemmaspec.measure.servers.bench import bench as use_case

    if running and url:
        raise UsageError("--running and --url cannot be used together")
    if not (profile or resume):
        raise UsageError("name a profile", hint="gemmaspec profile list")
    if patches and (running or url):
        raise UsageError("--speed-patches starts servers, and --running and --url start none")
    request = BenchRequest(
        **options.given(
            profile=profile,
            overrides=overrides,
            engine=engine,
            ks=ks,
            categories=categories,
            each=each,
            rounds=rounds,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            repeats=repeats,
            any_text=any_text,
            prompts=prompts,
            replace=replace,
            timeout_s=timeout_s,
            request_timeout_s=request_timeout_s,
            running=running,
            url=url,
            concurrencies=concurrencies,
            contexts=contexts,
            dummy_weights=dummy_weights,
            acceptance=acceptance,
            save_measured=save_measured,
            save_ids=save_ids,
        ),
        out=resume or out or _new_folder(profile),
        patches=_sets(patches),
        temperature=None if sample else temperature,
        resume=resume is not None,
        given=_given(context_),
    )
    if dry_run:
        _show_plan(request, as_json=json)
        return
    with start_progress() as progress:
        document = use_case(request, progress)
    _show(document, request.out, as_json=json)
    if document["failed"]:
        raise typer.Exit(StartFailed.exit_code)


def _new_folder(profile: str | None) -> Path:
    """Return a folder of this second, so that no run writes into another one's."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return Path(f"{Path(profile or '').stem}-bench-{now}")


def _show_plan(request: BenchRequest, *, as_json: bool) -> None:
    """Print what would be measured, and how many servers that starts."""
    from gemmaspec.cli.text import bench as text
    from gemmaspec.measure.servers.bench_plan import planned

    plan = planned(request, output.progress)
    cells = [{"arm": str(task.arm), "cell": str(task.cell), "round": task.round} for task in plan.tasks]
    document = {
        "ok": True,
        "profile": plan.profile,
        "arms": list(map(str, plan.arms)),
        "starts": plan.starts,
        "cells": cells,
    }
    page.answer(document, text.plan_lines(plan), as_json=as_json)


_PLACES: Final = 5
"""Keys of a result that are named at its end, at most."""


def _given(context: typer.Context) -> frozenset[str]:
    stated = set()
    for name in context.params:
        source = context.get_parameter_source(name)
        if source and source.name == "COMMANDLINE":
            stated.add(name)
    if "sample" in stated:
        stated.add("temperature")
    return frozenset(stated)


def _sets(patches: str | None) -> tuple[str, ...]:
    named = [patch.strip() for patch in (patches or "").split(",") if patch.strip()]
    if patches is not None and not named:
        raise UsageError("--speed-patches is empty; write speed,none or ids of patches")
    return tuple(dict.fromkeys(named))


def _show(document: Mapping[str, Any], out: Path, *, as_json: bool) -> None:
    from gemmaspec.cli.text import bench as text

    answer = {"ok": not document["failed"], **document, "envelope": text.envelope(document)}
    page.answer(answer, text.lines(document, width=output.width_of(sys.stdout)), as_json=as_json)
    output.progress(f"written to {out}/")
    if named := list(places(document, host=socket.gethostname())):
        if len(named) > _PLACES:
            more = f" and {len(named) - _PLACES} more"
        else:
            more = ""
        output.progress(
            f"result.json names this machine: {', '.join(named[:_PLACES])}{more}; look at it before you attach it"
        )
