"""What a step costs in addition to its bytes: tokens of layers in mobile form, and drafting on Ampere. Pure.

Both follow from one series of an E2B in Google's mobile form on an RTX 3090 (936 GB/s, at 220 W), published with vLLM
0.26.0 (llm-bench, vllm026-gemma4-mtp): 234.38 tokens/s for one request and 1,969 for 16 without a draft, and 270 for
one with two drafted tokens, of which 40 % were accepted. A fourth figure, 1,600 for 16 with one drafted token, says
what more requests cost where it drafts.

Layers that scale their outputs take a time for each token of a step: 15 more requests cost 3.9 ms, where their caches
are 0.8. It is taken as in proportion to the memory's bandwidth, because the kernels that scale only move bytes.
Drafting has a cost of its own there, which is launches: the rest of a step with two drafted tokens. On an H100 none is
left over: the steps of the 31B and the 26B-A4B with a draft are as long as their bytes and layers say. Of other
families nothing is known. Each further request makes each pass of the draft longer, by more than its token and its
cache: 15 of them add 2.2 ms to the step with one drafted token. What takes that time is not known.
"""

from __future__ import annotations

from typing import Final

_BANDWIDTH: Final = 936e9
_ALONE_S: Final = 1 / 234.38
_SIXTEEN_S: Final = 16 / 1969
_DRAFTED_S: Final = (1 + 2 * 0.40) / 270
_PASS_S: Final = 0.38e-3
"""A pass of its assistant: bytes and layers, as efficiency.py computes them."""
_CACHE_S: Final = 0.056e-3
"""The cache of one request of 1,024 tokens."""
_TOKEN_S: Final = (_SIXTEEN_S - _ALONE_S) / 15 - _CACHE_S
"""Seconds of one more token in a step."""
_DRAFTING_S: Final = {"ampere": _DRAFTED_S - _ALONE_S - 2 * (_PASS_S + _TOKEN_S)}
"""Family of GPUs → seconds of a step that drafts."""
_ONE_DRAFTED_S: Final = 16 * 1.525 / 1600 - 13.02e-3
"""What the step of 16 requests with one drafted token takes beyond all of the above. 1.525 tokens a step are what 40 %
of two drafted tokens come to where one is drafted."""
_REQUEST_S: Final = _ONE_DRAFTED_S / 15
"""Seconds of one more request in one pass of the draft."""
DEVIATION: Final = 0.35
"""Relative standard deviation of both: other steps of that series, at the same acceptance, are off by up to so much."""


def launches(*, family: str | None, scales_outputs: bool, bandwidth: float, requests: int, k: int) -> float:
    """Return the seconds that a step of so many requests takes in addition, with k drafted tokens each.

    `scales_outputs` says whether the target's layers do, as the mobile form's.
    """
    seconds = 0.0
    if k:
        seconds += _DRAFTING_S.get(family or "", 0.0)
    if scales_outputs:
        more_tokens = requests * (k + 1) - 1
        of_drafting = (requests - 1) * k * _REQUEST_S
        seconds += (more_tokens * _TOKEN_S + of_drafting) * _BANDWIDTH / bandwidth
    return seconds
