"""`gemmaspec tune`."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gemmaspec.cli import options
from gemmaspec.core.errors import Interrupted


def tune(
    profile: options.Profile,
    loads: options.Concurrency = None,
    budget: Annotated[str, options.option("--budget")] = "45m",
    ks: options.Drafts = None,
    arms: Annotated[list[str] | None, options.option("--arm", autocompletion=options.complete_profile)] = None,
    others: Annotated[bool, options.option("--others/--no-others")] = True,
    tries: Annotated[list[str] | None, options.option("--try", autocompletion=options.complete_key)] = None,
    prompts: options.Prompts = None,
    categories: options.Category = None,
    each: options.Each = None,
    rounds: Annotated[int, options.option("--stages", min=1, max=5)] = 3,
    max_tokens: options.MaxTokens = 128,
    ignore_eos: options.IgnoreEos = False,
    temperature: options.Temperature = 0.0,
    sample: options.Sample = False,
    repeats: options.Repeats = 1,
    replace: options.Replace = False,
    any_text: options.AcceptAnyText = False,
    name: Annotated[str | None, options.option("--name")] = None,
    out: Annotated[Path | None, options.option("--out", "-o", of="tune")] = None,
    resume: Annotated[bool, options.option("--continue")] = False,
    dry_run: options.DryRun = False,
    engine: options.Engine = None,
    overrides: options.Set = None,
    timeout_s: options.Timeout = 1800,
    request_timeout_s: options.RequestTimeout = 600,
    json: options.Json = False,
) -> None:
    """Find the draft and k that serve a machine and its traffic fastest, and write them as a profile of your own.

    Measures the target alone first, then each draft and k, the better half again with more prompts. What it writes is
    never slower than no speculation at any --concurrency; leaving speculation off is an answer. Ctrl-C ends it with the
    best of what was measured; --continue goes on.
    """
    from gemmaspec.cli.text import tune as text
    from gemmaspec.cli.text.progress import start_progress
    from gemmaspec.measure.servers.tune import plan
    from gemmaspec.measure.servers.tune import tune as use_case
    from gemmaspec.measure.tune.trials import TuneRequest, seconds_of

    request = TuneRequest(
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
            resume=resume,
            timeout_s=timeout_s,
            request_timeout_s=request_timeout_s,
            arms=arms,
            others=others,
            tries=tries,
            loads=loads,
            out=out,
            name=name,
        ),
        budget_s=seconds_of(budget, "--budget"),
        temperature=None if sample else temperature,
    )
    if dry_run:
        text.dry_run(*plan(request), as_json=json)
        return
    with _terminated(), start_progress() as progress:
        outcome = use_case(request, progress)
    text.outcome(outcome, as_json=json)
    if outcome.interrupted:
        if json:
            raise typer.Exit(Interrupted.exit_code)
        raise Interrupted(text.interrupted(outcome), hint="the same command with --continue")


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """Take a termination (SIGTERM) for Ctrl-C: what was measured is kept, and the server is stopped."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
