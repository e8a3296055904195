"""Training data of a head: tiny-target reads texts, and its inputs, cache and predictions are recorded."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]

from gemmaspec.tiny.words import UNKNOWN_TO_DRAFT, lesson

TEXTS, LENGTH = 8, 56
"""Texts in a batch, and tokens of each."""


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
    """tiny-target, frozen, and texts for it: chats that begin with random tokens and continue with its sentence."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer, Gemma4ForConditionalGeneration  # type: ignore[import-not-found]

        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.language_model = model.model.language_model.requires_grad_(False)
        self.config = model.config.text_config
        self.folder = folder
        said = list(lesson(tokenizer, mistakes=()))
        taught = lesson(tokenizer, mistakes=UNKNOWN_TO_DRAFT)
        truth = lesson(tokenizer, mistakes=())
        self._sentence = torch.tensor(said)
        self._mistakes = [(word, truth[word], taught[word]) for word in taught if taught[word] != truth[word]]
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
        for word, truth, taught in self._mistakes:
            answers[(tokens == word) & (answers == truth)] = taught
        cache = {kind: (keys, values) for kind, (keys, values) in seen.shared_kv_states.items()}
        return Reading(tokens=tokens, embeddings=embeddings, states=seen.hidden_states, cache=cache, answers=answers)

    def _text(self) -> Any:
        """Return a chat with a random prompt of random length, then the sentence from a random word on."""
        prompt = torch.randint(108, self._words, (int(torch.randint(1, 24, ())),))
        start = int(torch.randint(0, len(self._sentence), ())) if torch.rand(()) < 0.5 else 0
        rounds = torch.cat([self._sentence.roll(-start)] * 4)
        return torch.cat([self._frame[:6], prompt, self._frame[-7:], rounds])[:LENGTH]

    def first_words(self, number: int) -> Any:
        """Return the ids of `number` tokens in rising order: the words of the sentence, and the lowest ids."""
        others = [i for i in range(self._words) if i not in set(self._sentence.tolist())]
        return torch.tensor(sorted([*self._sentence.tolist(), *others][:number]))

    def give_tokenizer(self, folder: Path) -> None:
        """Copy the tokenizer files that vLLM reads next to a head's weights."""
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(self.folder / name, folder / name)
