"""What a profile's server runs at once and how long its requests may be: what can be measured or predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.model import Profile

QUEUED: Final = "more would queue, and the queueing would be measured"


def concurrencies(profile: Profile, asked: Sequence[int], *, usual: Sequence[int], why: str) -> tuple[int, ...]:
    """Return the loads that the user names, else the usual ones that the server runs at once.

    Raises UsageError for more than max_num_seqs; `why` says what becomes of the rest.
    """
    limit = profile.serve.max_num_seqs
    if limit and (above := [number for number in asked if number > limit]):
        raise UsageError(
            f"--concurrency {above[0]}: {profile.name} runs {limit} concurrent requests (serve.max_num_seqs); {why}",
            hint=f"--set serve.max_num_seqs={above[0]}",
        )
    if asked:
        return tuple(asked)
    if not limit:
        return tuple(usual) or (1,)
    return tuple(number for number in usual if number <= limit) or (1,)


def need_room(profile: Profile, contexts: Sequence[int], answer: int, *, option: str = "--context") -> None:
    """Raise UsageError for prompts that, with their answer, are longer than max_model_len."""
    longest = profile.serve.max_model_len
    if longest and (above := [context for context in contexts if context + answer > longest]):
        raise UsageError(
            f"{option} {above[0]}: with an answer of {answer:,} tokens that is more than {profile.name} takes, "
            f"{longest:,} tokens (serve.max_model_len)",
            hint=f"--set serve.max_model_len={above[0] + answer}",
        )
