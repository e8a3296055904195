"""`gemmaspec soak`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gemmaspec.cli import options, output

if TYPE_CHECKING:
    from gemmaspec.bench.soak import Turn

_EVERY = 10


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("soak")(soak)


def soak(
    name: options.Stack,
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long, such as 30m or 1h30m.")] = "30m",
    json: options.Json = False,
) -> None:
    """Hold long conversations with a running profile, and say what decays.

    Contexts grow turn by turn, with what prefix caching keeps, greedy and sampled answers and, where the profile has a
    tool parser, tools. Acceptance length, speed and memory of the first third are compared with those of the last, at
    contexts of the same length. Exit code 1 if something decays or a turn has no answer.
    """
    from gemmaspec.bench.soak import figures
    from gemmaspec.deploy.views.soak import soak as use_case
    from gemmaspec.tune.settings import seconds_of

    count = 0

    def told(turn: Turn) -> None:
        nonlocal count
        count += 1
        if turn.fault or count % _EVERY == 1:
            speed = f"{turn.tokens / turn.seconds:.1f} tokens/s" if turn.seconds else "-"
            output.progress(f"turn {count}: {turn.fault or f'place {turn.place}, {turn.kind}, {speed}'}")

    turns = use_case(name, seconds=seconds_of(for_, "--for"), on_turn=told)
    found, faults = figures(turns), [one.fault for one in turns if one.fault]
    worse = [one for one in found if one.decays]
    if json:
        rows = [{**vars(one), "change": round(one.change, 4)} for one in found]
        output.json_data({"ok": not worse and not faults, "turns": len(turns), "faults": faults, "figures": rows})
    else:
        output.told(f"{len(turns)} turns, {len(faults)} without an answer")
        for one in found:
            mark = "DECAYS" if one.decays else "steady"
            output.told(f"  {one.name:<18} {one.start:8.2f} → {one.end:8.2f}  {one.change:+.1%}  {mark}")
        if not found:
            output.told("  too few turns to compare start and end: give it longer")
    raise typer.Exit(1 if worse or faults else 0)
