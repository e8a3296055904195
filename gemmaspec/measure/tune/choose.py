"""What is chosen of everything that was tried, and why.

The profile that a tuning writes.

What a tuning has tried, as a file: whole after every cell, and read again by --continue.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import yaml
from pydantic import TypeAdapter, ValidationError

from gemmaspec.check.predict.envelope import GAIN
from gemmaspec.core import strict_yaml
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.model import Tuned
from gemmaspec.measure.bench.cells import Arm
from gemmaspec.measure.tune.next_arm import all_arms, last_rung, members
from gemmaspec.measure.tune.tried import Field, Tried, Worth, worth

TIE: Final = 0.01
"""Arms so near to the best count as equal to it: the smaller k, less memory and fewer patches decide then."""


@dataclass(frozen=True, kw_only=True)
class BestAtLoad:
    """A row of the k table: what is best at one number of requests at once."""

    concurrency: int
    k: int
    """The best k of the chosen arm's family; 0 for no speculation."""
    tokens_per_second: float
    times: float
    """Over no speculation."""
    fastest: Arm
    """The best of all arms there."""
    fastest_times: float


@dataclass(frozen=True, kw_only=True)
class TuneChoice:
    """The answer of a tuning."""

    arm: Arm
    worth: Worth
    why: str
    loads: tuple[BestAtLoad, ...]


def choose(tried: Tried, field: Field) -> TuneChoice | None:
    """Return the best arm that is slower than no speculation at no load; None before anything was compared.

    The arms of the last whole rung are compared, by what they did there. No speculation is an answer like any other.
    """
    arms = all_arms(tried, field)
    alone, rung = arms[0], last_rung(tried, field)
    finalists = [candidate for arm in members(tried, field, rung) if (candidate := worth(tried, arm, alone, rung=rung))]
    base = worth(tried, alone, alone, rung=rung)
    if base is None or (len(finalists) < 2 and not all(arm.alone or arm.key in tried.failed for arm in field.arms)):
        return None
    tables = [finalist for finalist in finalists if finalist.arm.table]
    finalists = [finalist for finalist in finalists if not finalist.arm.table]
    fair = [finalist for finalist in finalists if min(finalist.times) >= 1]
    best = max(fair, key=lambda finalist: finalist.score)
    equal = [finalist for finalist in fair if finalist.score >= best.score * (1 - TIE)]
    chosen = min(equal, key=_modesty)
    single, why = chosen, _why(tried, finalists, chosen, best)
    for table in tables:
        if gained := table_gains(tried.loads, table, single):
            chosen = table
            why = f"{table.score:.2f} times the speed without speculation, over {_loads(tried)}; {gained}"
    everything = [candidate for arm in arms if (candidate := _as_in(tried, arm, chosen, base))]
    loads = tuple(_load(tried, everything, chosen, base, place) for place in range(len(tried.loads)))
    return TuneChoice(arm=chosen.arm, worth=chosen, why=why, loads=loads)


def table_gains(loads: Sequence[int], table: Worth, single: Worth) -> str | None:
    """Say what a measured table gains over the best single arm; None where it gains too little or loses at a load."""
    ratios = [tuned / other for tuned, other in zip(table.times, single.times, strict=True)]
    gain, load = max(zip(ratios, loads, strict=True))
    if gain <= 1 + GAIN or min(ratios) < 1 - TIE or min(table.times) < 1:
        return None
    return f"{gain - 1:.0%} over {single.arm} at {load} at once, and behind it at none"


def _as_in(tried: Tried, arm: Arm, chosen: Worth, base: Worth) -> Worth | None:
    """Return an arm as it would stand in the rung of the chosen one, by the last rung in which both were measured."""
    for rung in range(chosen.rung, -1, -1):
        mine, other = (worth(tried, compared, base.arm, rung=rung) for compared in (arm, chosen.arm))
        if mine and other:
            times = tuple(a * b / c for a, b, c in zip(mine.times, chosen.times, other.times, strict=True))
            rates = tuple(times_base * rate for times_base, rate in zip(times, base.rates, strict=True))
            return Worth(arm=arm, rung=rung, rates=rates, times=(1.0,) * len(times) if arm.alone else times)
    return None


def _modesty(worth: Worth) -> tuple[int, int, int, float]:
    return worth.arm.k, worth.arm.memory, worth.arm.required, -worth.score


def _load(tried: Tried, worths: Sequence[Worth], chosen: Worth, base: Worth, place: int) -> BestAtLoad:
    family = [worth for worth in worths if worth.arm.alone or worth.arm.family == chosen.arm.family]
    best, fastest = _modest(family, place), _modest(worths, place)
    return BestAtLoad(
        concurrency=tried.loads[place],
        k=best.arm.at(tried.loads[place]),
        tokens_per_second=best.times[place] * base.rates[place],
        times=best.times[place],
        fastest=fastest.arm,
        fastest_times=fastest.times[place],
    )


def _modest(worths: Sequence[Worth], place: int) -> Worth:
    """Return the best at one load, by the rule for ties."""
    top = max(worth.times[place] for worth in worths)
    return min((worth for worth in worths if worth.times[place] >= top * (1 - TIE)), key=_modesty)


def _why(tried: Tried, worths: Sequence[Worth], chosen: Worth, best: Worth) -> str:
    """Say in one sentence why it was chosen."""
    drafting = [worth for worth in worths if not worth.arm.alone]
    if not drafting:
        return "no server with speculation started"
    first = max(drafting, key=lambda drafter: drafter.score)
    unfair = min(first.times) < 1 < first.score and first is not best
    slower = f"{first.arm} is faster over all, and {_slower(tried, first)}" if unfair else ""
    if chosen.arm.alone:
        nothing = f"nothing that drafts is more than {TIE:.0%} faster: {first.arm} reaches {first.score:.2f} times"
        return slower or f"{nothing} the speed without speculation"
    gain = f"{chosen.score:.2f} times the speed without speculation, over {_loads(tried)}"
    if chosen is not best:
        return f"{gain}; {best.arm} is within {TIE:.0%} of it, with {_more(chosen, best)}"
    return f"{gain}; {slower}" if slower else gain


def _slower(tried: Tried, worth: Worth) -> str:
    times, load = min(zip(worth.times, tried.loads, strict=True))
    return f"slower than no speculation at {load} at once ({times:.2f} times)"


def _more(chosen: Worth, other: Worth) -> str:
    if other.arm.k != chosen.arm.k:
        return "a larger k"
    return "more memory" if other.arm.memory != chosen.arm.memory else "more patches"


def _loads(tried: Tried) -> str:
    shown = [str(load) for load in tried.loads]
    return f"{', '.join(shown[:-1])} and {shown[-1]} at once" if len(shown) > 1 else f"{shown[0]} at once"


_HEAD = """\
# Written by gemmaspec tune, which replaces it when it is run again with this name. `tuned` says what was measured, and
# on what; `gemmaspec up {name}` says whether it is still so.
"""


def profile_text(name: str, arm: Arm, *, overrides: Sequence[str], tuned: Tuned) -> str:
    """Return a profile that extends the arm's with what was set for it. `overrides` are the user's own KEY=VALUE."""
    drafts = "without speculation" if arm.alone else f"{arm.method}, k={arm.k}"
    document: dict[str, Any] = {"extends": arm.profile, "name": name, "summary": f"{arm.profile}, tuned: {drafts}"}
    if arm.knob:
        document["summary"] += f", {arm.knob}"
    for override in (*overrides, *arm.overrides):
        document = _set(document, override)
    if arm.alone:
        document |= {"draft": None, "speculative": None}
    document["tuned"] = tuned.model_dump(mode="json", exclude_none=True)
    return _HEAD.format(name=name) + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def _set(document: Mapping[str, Any], override: str) -> dict[str, Any]:
    key, _, text = override.partition("=")
    changed = copy.deepcopy(dict(document))
    place = changed
    *path, last = key.split(".")
    for part in path:
        inner = place.get(part)
        place[part] = inner if isinstance(inner, dict) else {}
        place = place[part]
    place[last] = strict_yaml.parse(text, file=f"--set {key}").data if text.strip() else None
    return changed


KIND: Final = "gemmaspec tune"
SCHEMA: Final = 1
MAX_BYTES: Final = 8 * 1024 * 1024


def tried_json(tried: Tried, field: Field) -> dict[str, Any]:
    """Return the arms and what was tried of them."""
    arms = [{"key": tried_arm.key, **asdict(tried_arm)} for tried_arm in all_arms(tried, field)]
    return {"arms": arms, "left_out": dict(field.left_out), "tried": asdict(tried)}


def choice_json(choice: TuneChoice | None) -> dict[str, Any] | None:
    """Return the answer, as far as there is one."""
    if choice is None:
        return None
    return {
        "arm": choice.arm.key,
        **asdict(choice.arm),
        "why": choice.why,
        "times": choice.worth.score,
        "k_by_load": [
            {
                "concurrency": load.concurrency,
                "k": load.k,
                "tokens_per_second": round(load.tokens_per_second, 3),
                "times": round(load.times, 4),
                "fastest": load.fastest.key,
                "fastest_times": round(load.fastest_times, 4),
            }
            for load in choice.loads
        ],
    }


def parse(text: str, *, file: str) -> tuple[dict[str, Any], Tried]:
    """Return a stored tuning and what it tried. Raises UsageError for a file that tune did not write."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or (document.get("kind"), document.get("schema")) != (KIND, SCHEMA):
        raise UsageError(f"{file} is damaged, or another gemmaspec wrote it", hint="start again, without --continue")
    maps = all(isinstance(document.get(name), dict) for name in ("settings", "provenance"))
    try:
        tried = TypeAdapter(Tried).validate_python(document.get("tried"))
    except ValidationError:
        tried = None
    if tried is None or not maps or not isinstance(document.get("spent_s"), int | float):
        raise UsageError(f"{file} is damaged: what was tried cannot be read", hint="start again, without --continue")
    return document, tried
