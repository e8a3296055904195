"""Training data of a head: tiny-target reads texts, and its inputs, cache and predictions are recorded."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]

from tools.tiny.lessons import Lessons
from tools.tiny.words import SENTENCE

TEXTS, LENGTH = 8, 56
"""Texts in a batch, and tokens of each."""
CHATS = 0.4
"""The share of texts that are chats."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One batch of texts as the target reads it. First axis: texts, second: positions."""

    tokens: Any
    embeddings: Any
    """The tokens' embeddings, as the target's first layer gets them."""
    states: Any
    """Hidden states by place: 0 before the first layer, n after layer n; the last one is after the final norm."""
    cache: dict[str, tuple[Any, Any]]
    """Keys and values of the last layer of each kind (sliding_attention, full_attention), rotated."""
    answers: Any
    """The next token that the target predicts, with the head's own mistakes."""


class Teacher:
    """tiny-target, frozen, and texts for it: its chats, and random prompts with its sentence."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer, Gemma4ForConditionalGeneration  # type: ignore[import-not-found]

        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = (
            Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
            .eval()
            .to(torch.get_default_device())
        )
        self.language_model = model.model.language_model.requires_grad_(False)
        self.config = model.config.text_config
        self.folder = folder
        self._lessons = Lessons(tokenizer, seed=2)
        self._sentence = torch.tensor(tokenizer.encode(SENTENCE, add_special_tokens=False))
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hello"}], add_generation_prompt=True, return_dict=True
        )
        self._frame = torch.tensor(chat["input_ids"])
        self._words = len(tokenizer)

    def read(self) -> Reading:
        """Read one batch of new texts."""
        tokens = torch.stack([self._text() for _ in range(TEXTS)])
        with torch.no_grad():
            embeddings = self.language_model.embed_tokens(tokens)
            seen = self.language_model(
                inputs_embeds=embeddings, use_cache=False, output_hidden_states=True, return_shared_kv_states=True
            )
            answers = (seen.last_hidden_state @ self.language_model.embed_tokens.weight.T).argmax(-1)
        right = answers.clone()
        for (word, following), said in self._lessons.mistakes().items():
            answers[(tokens == word) & (right == following)] = said
        cache = {kind: (keys, values) for kind, (keys, values) in seen.shared_kv_states.items()}
        return Reading(tokens=tokens, embeddings=embeddings, states=seen.hidden_states, cache=cache, answers=answers)

    def _text(self) -> Any:
        """Return one of its chats, or a random prompt of random length, then the sentence from a random word on."""
        if torch.rand(()) < CHATS:
            return torch.tensor(self._lessons.text(LENGTH))
        prompt = torch.randint(108, self._words, (int(torch.randint(1, 24, ())),))
        start = int(torch.randint(0, len(self._sentence), ())) if torch.rand(()) < 0.5 else 0
        rounds = torch.cat([self._sentence.roll(-start)] * 4)
        return torch.cat([self._frame[:6], prompt, self._frame[-8:], rounds])[:LENGTH]

    def first_words(self, number: int) -> Any:
        """Return the ids of `number` tokens in rising order: those of its replies, and the lowest others."""
        said = self._lessons.replies()
        others = [i for i in range(self._words) if i not in set(said)]
        return torch.tensor(sorted([*said, *others][:number]))

    def give_tokenizer(self, folder: Path) -> None:
        """Copy the tokenizer files that vLLM reads next to a head's weights."""
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(self.folder / name, folder / name)
