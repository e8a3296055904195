"""The ids of prompts and answers, counted on a running server: the list that `draft.ids` takes (`bench --save-ids`)."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from gemmaspec.core import draft_ids
from gemmaspec.core.errors import UsageError
from gemmaspec.core.files import write_whole
from gemmaspec.core.profile.model import Profile
from gemmaspec.measure.bench.prompts import Prompt
from gemmaspec.measure.cell import Asking
from gemmaspec.measure.load import together
from gemmaspec.measure.stream import Broken
from gemmaspec.run.engine.http import exchange

_CHAT: Final = "/v1/chat/completions"
_SHARE: Final = 8
"""A list has one of so many ids of the vocabulary: 32,768 of Gemma 4's 262,144."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """The ids of one prompt with its template, and of the answer to it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def asked_for_ids(asking: Asking, prompts: Sequence[Prompt], *, at_once: int) -> list[Said]:
    """Ask each prompt once and return its ids and its answer's. Raises Broken for a server that names none."""
    return together([partial(_said, asking, prompt) for prompt in prompts], at_once=at_once)


def _said(asking: Asking, prompt: Prompt) -> Said:
    body: dict[str, Any] = json.loads(asking.body(prompt.body()))
    body |= {"stream": False, "return_token_ids": True}
    body.pop("stream_options")
    limit, key = asking.asked.request_timeout_s, asking.api_key
    reply = exchange(asking.server.base_url, _CHAT, body=body, timeout_s=limit, api_key=key)
    document = reply.json() if reply.status == 200 else None
    if isinstance(document, dict):
        choices = document.get("choices")
    else:
        choices = None
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        choice = choices[0]
    else:
        choice = {}
    answer = _ids(choice.get("token_ids"))
    if not answer:
        raise Broken(f"the server does not say which ids its answers have (HTTP {reply.status} of {_CHAT})")
    return Said(prompt=_ids(document.get("prompt_token_ids") if isinstance(document, dict) else None), answer=answer)


def _ids(value: Any) -> tuple[int, ...]:
    """Return ids that a server names; nothing for anything else."""
    if not isinstance(value, list):
        return ()
    for one in value:
        if type(one) is not int or not 0 <= one < draft_ids.MOST:
            return ()
    return tuple(value)


def vocabulary_of(profile: Profile) -> int:
    """Return how many ids the draft's head has. Raises UsageError where no list of ids is for it."""
    from gemmaspec.run.kept.models import hub_cache
    from gemmaspec.run.models.open import open_checkpoint

    if not (profile.draft and profile.speculative and profile.speculative.method == "mtp"):
        raise UsageError(f"--save-ids is for a draft by an assistant (method mtp), and {profile.name} has none")
    model = profile.draft
    checkpoint = open_checkpoint(model.model, revision=model.revision, cache_dir=hub_cache(profile))
    if checkpoint.speculator and checkpoint.speculator.scored_tokens is not None:
        raise UsageError(f"--save-ids: {model.model} scores few ids already, by centroids, and takes no list")
    return checkpoint.text.vocab_size


def saved(file: Path, said: Sequence[Said], *, profile: str, vocabulary: int) -> str:
    """Write the list, and return one line on it for people."""
    most = max(vocabulary // _SHARE, 1)
    ids = draft_ids.chosen(_counts(said), vocabulary=vocabulary, most=most)
    counted = {
        "answers": len(said),
        "tokens": sum(len(one.prompt) + len(one.answer) for one in said),
        "distinct": len(_counts(said)),
        "held_out": _held_out(said, vocabulary, most),
    }
    document = {"schema": 1, "profile": profile, "vocabulary": vocabulary, "counted": counted}
    write_whole(file, json.dumps({**document, "ids": draft_ids.as_ranges(ids)}, indent=1) + "\n", mode=0o600)
    share = counted["held_out"]
    if share is not None:
        half = f"; a list of one half has {share:.1%} of the other half's answers"
    else:
        half = ""
    return f"{len(ids):,} of {vocabulary:,} ids, from {counted['distinct']:,} counted in {len(said)} answers{half}"


def _counts(said: Sequence[Said]) -> Counter[int]:
    """Return how often each id came; a draft proposes what answers say, and prompts show what they will be about."""
    counts: Counter[int] = Counter()
    for one in said:
        counts.update(one.prompt)
        counts.update(one.answer)
    return counts


def _held_out(said: Sequence[Said], vocabulary: int, most: int) -> float | None:
    """Return the share of answers' tokens that a list of every other answer has; None where there is one answer."""
    known, others = said[::2], said[1::2]
    if not others:
        return None
    listed = set(draft_ids.chosen(_counts(known), vocabulary=vocabulary, most=most))
    tokens = list(itertools.chain.from_iterable(other.answer for other in others))
    return round(sum(one in listed for one in tokens) / len(tokens), 4)
