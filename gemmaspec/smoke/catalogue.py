"""All checks, and how long they take at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gemmaspec.errors import UsageError
from gemmaspec.smoke.check import Check, Offer, skipped
from gemmaspec.smoke.forms import FORMS
from gemmaspec.smoke.serving import SERVING
from gemmaspec.smoke.texture import TEXTURE
from gemmaspec.smoke.thinking import THINKING

CHECKS: Final = tuple(sorted((*THINKING, *FORMS, *TEXTURE, *SERVING), key=lambda one: int(one.id[1:])))
_GAIN: Final = 0.6
"""How much each further request at once adds to the tokens per second, in units of one request's. Published figures:
3.2 times as many for 3 requests, 5.6 for 4, 6.2 for 8 (docs/reference/shipped-profiles.md)."""


def chosen(*, only: Sequence[str], skip: Sequence[str]) -> tuple[Check, ...]:
    """Return the checks of these ids, or all but those. Raises UsageError for an id that does not exist."""
    known = {one.id for one in CHECKS}
    for one in (*only, *skip):
        if one not in known:
            raise UsageError(f"there is no check {one!r}", hint="gemmaspec smoke --list")
    return tuple(one for one in CHECKS if (not only or one.id in only) and one.id not in skip)


def budget_s(checks: Sequence[Check], offer: Offer, *, tokens_per_second: float = 30.0) -> float:
    """Return the seconds that the checks' answers take at most, each as long as its max_tokens.

    `tokens_per_second` is the speed of one request alone. Reading the prompts, some 17,000 tokens in all, comes on top.
    """
    asks = [ask for check in checks if not skipped(check, offer) for ask in check.asks(offer)]
    alone = sum(one.max_tokens for one in asks if one.alone)
    together = sum(one.max_tokens for one in asks if not one.alone)
    gain = 1 + _GAIN * (offer.together - 1)
    return (alone + together / gain) / tokens_per_second
