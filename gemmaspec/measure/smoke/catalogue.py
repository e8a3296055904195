"""All checks, and how long they take at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gemmaspec.core import strict_yaml
from gemmaspec.core.errors import UsageError
from gemmaspec.measure.smoke import text_checks
from gemmaspec.measure.smoke.check import (
    Check,
    Need,
    ServerOffer,
    Work,
    skipped,
)
from gemmaspec.measure.smoke.forms import _all_fit, _calls_whole, _ends, _s5, _s7, _s9, _s10, _s15, _tools_taken
from gemmaspec.measure.smoke.serving import _drafts, _right_model, _s13, _s14, _s16, _s18, _survives, _taken
from gemmaspec.run.engine.answer import Fault

_WORK: Final[Mapping[str, Work]] = {
    **text_checks.WORK,
    "S5": (_s5, _all_fit),
    "S7": (_s7, _calls_whole),
    "S9": (_s9, _all_fit),
    "S10": (_s10, _ends),
    "S13": (_s13, _survives),
    "S14": (_s14, _taken),
    "S15": (_s15, _tools_taken),
    "S16": (_s16, _right_model),
    "S18": (_s18, _drafts),
}
TABLE: Final = Path(__file__).with_name("checks.yaml")


def _check(id_: str, row: Mapping[str, Any]) -> Check:
    asks, judge = _WORK[id_]
    needs = frozenset(Need[name] for name in row.get("needs", ()))
    judges = frozenset(Fault[name] for name in row.get("judges", ()))
    return Check(
        id=id_,
        name=row["name"],
        asks=asks,
        judge=judge,
        fix=row["fix"],
        needs=needs,
        counts=row.get("counts", True),
        judges=judges,
    )


CHECKS: Final = tuple(_check(id_, row) for id_, row in strict_yaml.table(TABLE).items())
_GAIN: Final = 0.6
"""How much each further request at once adds to the tokens per second, in units of one request's. Published figures:
3.2 times as many for 3 requests, 5.6 for 4, 6.2 for 8 (docs/reference/shipped-profiles.md)."""


def chosen(*, only: Sequence[str], skip: Sequence[str]) -> tuple[Check, ...]:
    """Return the checks of these ids, or all but those. Raises UsageError for an id that does not exist."""
    known = {check.id for check in CHECKS}
    for name in (*only, *skip):
        if name not in known:
            raise UsageError(f"there is no check {name!r}", hint="gemmaspec smoke --list")
    wanted = (set(only) or known) - set(skip)
    return tuple(check for check in CHECKS if check.id in wanted)


def budget_s(checks: Sequence[Check], offer: ServerOffer, *, tokens_per_second: float = 30.0) -> float:
    """Return the seconds that the checks' answers take at most, each as long as its max_tokens.

    `tokens_per_second` is the speed of one request alone. Reading the prompts, some 17,000 tokens in all, comes on top.
    """
    alone = together = 0
    for check in checks:
        if skipped(check, offer):
            continue
        for ask in check.asks(offer):
            if ask.alone:
                alone += ask.max_tokens
            else:
                together += ask.max_tokens
    gain = 1 + _GAIN * (offer.together - 1)
    return (alone + together / gain) / tokens_per_second
