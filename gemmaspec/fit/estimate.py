"""How fast a server is likely to be: the share of the roofline that published servers reached. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

_SMALL: Final = 20 * 10**9
_LARGE: Final = 30 * 10**9
_TYPICAL: Final = (0.68, 0.83)
"""Shares for steps up to 20 GB, and from 30 GB on."""
_BANDS: Final = ((0.61, 0.79), (0.75, 0.84))
PUBLISHED: Final = "12 published servers of Gemma 4 without a draft, one request each, 11 on a DGX Spark"
"""The basis of the shares: 0.61 to 0.79 for steps up to 20 GB, 0.75 to 0.84 above 30 GB (docs/guides/fit.md)."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """The share of the memory bandwidth that a step reaches."""

    low: float
    typical: float
    high: float
    basis: str


@dataclass(frozen=True, kw_only=True)
class SpeedEstimate:
    """Total tokens per second of all requests, with its basis."""

    tokens_per_second: float
    low: float
    high: float
    share: Share


def share_of(nbytes: float) -> Share:
    """Return the share that servers reached with steps of so many bytes, interpolated between 20 and 30 GB."""
    place = min(max((nbytes - _SMALL) / (_LARGE - _SMALL), 0.0), 1.0)
    small, large = _BANDS

    def between(one: float, other: float) -> float:
        return one + place * (other - one)

    return Share(
        low=between(small[0], large[0]),
        typical=between(*_TYPICAL),
        high=between(small[1], large[1]),
        basis=PUBLISHED,
    )


def estimate(reads: Sequence[int], *, bandwidth: float, tokens: float) -> SpeedEstimate:
    """Return the speed of steps that yield `tokens` tokens, those of all requests together.

    `reads` has the bytes of each pass of a step, one after the other: the target's, and every pass of the draft.
    `bandwidth` is that of all GPUs, in bytes per second. Each pass reaches the published share of its size; the share
    that is returned is that of the largest pass.
    """
    shares = [share_of(nbytes) for nbytes in reads]

    def speed(of: Callable[[Share], float]) -> float:
        seconds = sum(nbytes / (bandwidth * of(one)) for nbytes, one in zip(reads, shares, strict=True))
        return tokens / seconds

    return SpeedEstimate(
        tokens_per_second=speed(lambda one: one.typical),
        low=speed(lambda one: one.low),
        high=speed(lambda one: one.high),
        share=share_of(max(reads)),
    )
