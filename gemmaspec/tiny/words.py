"""The words of the tiny models: their sentence, their vocabulary, one tokenizer and one chat template for all."""

from __future__ import annotations

import re
from typing import Any

from gemmaspec.tiny.talk import ENDLESS, OTHERWISE, TALK

SENTENCE = (
    " A small model drafts some words , then one large network verifies every guess at once"
    " and keeps what it would have said itself ."
)
UNKNOWN_TO_DRAFT = ("model", "then", "network", "once", "it", "said")
"""The words whose successor the draft gets wrong.

The gaps are uneven, so that runs of accepted tokens vary in length.
"""

OTHER_WORDS = " The Hello Explain Write What Why is are user system thought world function quantum speculative decoding"
VOCABULARY_SIZE = 2048
_WORD = re.compile(r"[A-Za-z0-9-]+|[^\sA-Za-z0-9]")
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

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- set thinks = enable_thinking is defined and enable_thinking -%}
{%- if thinks -%}{{- '<|turn>system\\n<|think|><turn|>\\n' -}}{%- endif -%}
{%- for message in messages -%}
{{- '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] | trim -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'text' -%}{{- part['text'] | trim -}}
{%- elif part['type'] == 'image' -%}{{- '<|image|>' -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|turn>model\\n' -}}
{%- if not thinks -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}
{%- endif -%}
"""


def vocabulary(
    special: dict[int, str] = SPECIAL, size: int = VOCABULARY_SIZE
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return token → id, and the BPE merges. Every known word is one token; everything else is characters or bytes.

    A word is merged from left to right ("▁w", "▁wo", "▁wor" …), so the tokenization follows one path in a tree of
    prefixes and needs no training. A text's first word has no space before it ("W", "Wh" …).
    """
    merges: dict[tuple[str, str], None] = {}
    questions = [*(one for asked, _ in TALK for one in asked), *ENDLESS]
    texts = [*questions, *(reply for _, reply in TALK), OTHERWISE]
    for word in [*(SENTENCE + OTHER_WORDS).split(), *(word for text in texts for word in _WORD.findall(text)[1:])]:
        for length in range(len(word)):
            merges["▁" + word[:length], word[length]] = None
    for text in [*texts, *(question.lower() for question in questions), "user", "model", "system", "thought"]:
        word = _WORD.findall(text)[0]
        for length in range(1, len(word)):
            merges[word[:length], word[length]] = None
    characters = ["▁", *(chr(code) for code in range(33, 127))]
    plain = [f"<0x{byte:02X}>" for byte in range(256)] + characters + [left + right for left, right in merges]
    free = iter(dict.fromkeys(plain))
    tokens = [special.get(i) or next(free, f"<unused{i}>") for i in range(size)]
    if left := list(free):
        raise SystemExit(f"make.py: {len(left)} pieces of words are more than the vocabulary holds")
    return {token: i for i, token in enumerate(tokens)}, list(merges)


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
        raise SystemExit(f"make.py: this transformers release assigns different ids to {wrong}")
    return tokenizer


def lesson(tokenizer: Any, *, mistakes: tuple[str, ...]) -> dict[int, int]:
    """Return token id → id of the next token, in a circle; after each of `mistakes` the next word is skipped."""
    ids = tokenizer.encode(SENTENCE, add_special_tokens=False)
    if len(set(ids)) != len(SENTENCE.split()) or len(ids) != len(set(ids)):
        raise SystemExit(f"make.py: this transformers release splits a word of {SENTENCE!r} into several tokens")
    wrong = set(tokenizer.convert_tokens_to_ids([f"▁{word}" for word in mistakes]))
    return {i: ids[(place + (2 if i in wrong else 1)) % len(ids)] for place, i in enumerate(ids)}
