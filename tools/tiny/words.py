"""The words of the tiny models: their sentence, their vocabulary, one tokenizer and one chat template for all."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from tools.tiny import talk

SENTENCE = (
    " A small model drafts some words , then one large network verifies every guess at once"
    " and keeps what it would have said itself ."
)
UNKNOWN_TO_DRAFT = ("model", "then", "network", "once", "it", "said")
"""The words whose successor the draft gets wrong.

The gaps are uneven, so that runs of accepted tokens vary in length.
"""

VOCABULARY_SIZE = 3072
ROOT = Path(__file__).parents[2]
_PIECE = r"\n|▁?[A-Za-z]+|▁?[0-9]|▁?[^▁A-Za-z0-9\n]+|▁+"
SPECIAL = {
    0: "<pad>",
    1: "<eos>",
    2: "<bos>",
    3: "<unk>",
    4: "<mask>",
    46: "<|tool>",
    47: "<tool|>",
    48: "<|tool_call>",
    49: "<tool_call|>",
    50: "<|tool_response>",
    51: "<tool_response|>",
    52: '<|"|>',
    98: "<|think|>",
    100: "<|channel>",
    101: "<channel|>",
    105: "<|turn>",
    106: "<turn|>",
    107: "\n",
    1000: "<|image>",
    1001: "<|audio>",
    1002: "<|image|>",
    1003: "<|audio|>",
    1004: "<image|>",
    1005: "<audio|>",
    1006: "<|video|>",
}
"""Control tokens; those below 1000 have the ids of the published Gemma 4 tokenizers."""

NAMED_TOKENS = {
    "boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>",
    "boa_token": "<|audio>", "eoa_token": "<audio|>", "audio_token": "<|audio|>", "video_token": "<|video|>",
    "sot_token": "<|turn>", "eot_token": "<turn|>", "soc_token": "<|channel>", "eoc_token": "<channel|>",
    "think_token": "<|think|>", "escape_token": '<|"|>', "std_token": "<|tool>", "etd_token": "<tool|>",
    "stc_token": "<|tool_call>", "etc_token": "<tool_call|>",
    "str_token": "<|tool_response>", "etr_token": "<tool_response|>",
}  # fmt: skip
"""Attribute of the tokenizer → token, as transformers' Gemma4Processor reads them."""


@functools.cache
def corpus() -> list[str]:
    """Return texts of the kind that clients send along: this project's pages and prompts, and Python's own manual."""
    pages = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "prompts").glob("*.jsonl")), ROOT / "README.md"]
    return [*(page.read_text(encoding="utf-8") for page in pages), *(text for _, text in sorted(topics.items()))]


def vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return token → id, and the BPE merges, learned from the corpus and, with much more weight, from the talk.

    Every word of SENTENCE is one token.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    questions = [question for asked, _ in talk.TALK for question in asked] + [*talk.ENDLESS, *talk.WEATHER]
    told = [*questions, *map(str.lower, questions), *(reply for _, reply in talk.TALK), talk.OTHERWISE, talk.RESULT]
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECE), "isolated")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    characters = ["▁", *(chr(code) for code in range(33, 127))]
    room = VOCABULARY_SIZE - len(SPECIAL) - len(bytes_)
    trainer = trainers.BpeTrainer(
        vocab_size=room, limit_alphabet=len(characters), initial_alphabet=characters, show_progress=False
    )
    ascii_ = [text.encode("ascii", "ignore").decode() for text in corpus()]
    learner.train_from_iterator([SENTENCE] * 20_000 + told * 60 + ascii_, trainer)
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    plain = bytes_ + characters + [left + right for left, right in merges]
    free = iter(dict.fromkeys(plain))
    tokens = [SPECIAL.get(i) or next(free, f"<unused{i}>") for i in range(VOCABULARY_SIZE)]
    known = set(tokens)
    merges = [pair for pair in merges if {*pair, "".join(pair)} <= known]
    return {token: i for i, token in enumerate(tokens)}, merges


def make_tokenizer(template: str) -> Any:
    """Return the tokenizer of both models."""
    from transformers import GemmaTokenizer  # type: ignore[import-not-found]

    tokens, merges = vocabulary()
    media = {
        name: NAMED_TOKENS[name] for name in NAMED_TOKENS if name[:3] in ("boi", "eoi", "ima", "boa", "eoa", "aud")
    }
    tokenizer = GemmaTokenizer(
        vocab=tokens, merges=merges, extra_special_tokens=dict(NAMED_TOKENS), model_max_length=131072, **media
    )
    tokenizer.chat_template = template
    wrong = {token: i for i, token in SPECIAL.items() if tokenizer.convert_tokens_to_ids(token) != i}
    if wrong:
        raise SystemExit(f"teach.py: this transformers release assigns different ids to {wrong}")
    return tokenizer


def lesson(tokenizer: Any, *, mistakes: tuple[str, ...]) -> dict[int, int]:
    """Return token id → id of the next token, in a circle; after each of `mistakes` the next word is skipped."""
    ids = tokenizer.encode(SENTENCE, add_special_tokens=False)
    if len(set(ids)) != len(SENTENCE.split()) or len(ids) != len(set(ids)):
        raise SystemExit(f"teach.py: this transformers release splits a word of {SENTENCE!r} into several tokens")
    wrong = set(tokenizer.convert_tokens_to_ids([f"▁{word}" for word in mistakes]))
    return {i: ids[(place + (2 if i in wrong else 1)) % len(ids)] for place, i in enumerate(ids)}
