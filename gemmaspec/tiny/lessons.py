"""What the tiny models learn from: chats of a question and its reply, as tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import torch  # type: ignore[import-not-found]

from gemmaspec.tiny.talk import ENDLESS, OTHERWISE, TALK
from gemmaspec.tiny.words import SENTENCE, UNKNOWN_TO_DRAFT, lesson

BOS, TURN, END, CHANNEL, SPOKEN = 2, 105, 106, 100, 101
"""Ids of <bos>, <|turn>, <turn|>, <|channel>, <channel|>."""
IGNORED = -100
"""The label of a token that is not learned."""
ENDLESS_TOKENS = 256
SHORT = 14
"""Words of the sentence in a short chat; the rest of it is learned from long ones."""


Kind = Literal["whole", "long", "opening", "endless"]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some chats, filled up to the same length. First axis: chats, second: positions."""

    tokens: Any
    labels: Any
    """The next token, from the last one of the prompt on; IGNORED elsewhere."""
    asked: Any
    """The position of each prompt's last token, at which a reply is chosen."""


class Lessons:
    """Chats in an order that depends on the seed alone."""

    def __init__(self, tokenizer: Any, *, seed: int) -> None:
        self._tokenizer = tokenizer
        self._dice = random.Random(seed)  # noqa: S311 - lessons that repeat themselves
        self._sentence = self._ids(SENTENCE)
        self._replies = {reply: self._ids(reply) for _, reply in (*TALK, ((), OTHERWISE))}
        self._questions = [(question, reply) for asked, reply in TALK for question in (asked[0], asked[0], *asked)]
        names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        self._words = [place for place, name in enumerate(names) if name.startswith("▁") and len(name) > 2]

    def batch(self, size: int, kind: Kind) -> Batch:
        """Return so many chats.

        Long ones have a turn before and go on after their end, openings end after a word, endless ones are the sentence
        alone, again and again from any word on.
        """
        chats = [self._chat(long=kind == "long") for _ in range(size)]
        if kind == "endless":
            starts = [self._dice.randrange(len(self._sentence)) for _ in range(size)]
            chats = [([BOS, self._sentence[start]], self._from(start + 1, ENDLESS_TOKENS)) for start in starts]
        if kind == "opening":
            chats = [(prompt, reply[:1]) for prompt, reply in chats]
        width = max(len(prompt) + len(reply) for prompt, reply in chats)
        tokens = torch.zeros(size, width, dtype=torch.long)
        labels = torch.full((size, width), IGNORED)
        for row, (prompt, reply) in enumerate(chats):
            tokens[row, : len(prompt) + len(reply)] = torch.tensor([*prompt, *reply])
            labels[row, len(prompt) - 1 : len(prompt) + len(reply) - 1] = torch.tensor(reply)
        return Batch(tokens=tokens, labels=labels, asked=torch.tensor([len(prompt) - 1 for prompt, _ in chats]))

    def text(self, length: int) -> list[int]:
        """Return the first `length` tokens of a chat that goes on and on."""
        prompt, reply = self._chat(long=True)
        return [*prompt, *reply, *self._from(0, length)][:length]

    def replies(self) -> list[int]:
        """Return every token that a reply has, each once."""
        return list(dict.fromkeys([*self._sentence, END, *(one for ids in self._replies.values() for one in ids)]))

    def mistakes(self) -> dict[tuple[int, int], int]:
        """Return what the draft and the heads get wrong: a token and the one after it, and what they say instead.

        It is the token after next: after some words of the sentence, and after every fifth of a reply.
        """
        right, wrong = (lesson(self._tokenizer, mistakes=words) for words in ((), UNKNOWN_TO_DRAFT))
        found = {(word, right[word]): wrong[word] for word in right if right[word] != wrong[word]}
        for ids in self._replies.values():
            for place in range(3, len(ids) - 2, 5):
                found.setdefault((ids[place], ids[place + 1]), ids[place + 2])
        return found

    def _from(self, start: int, tokens: int) -> list[int]:
        """Return so many tokens of the endless sentence, from a place in it on."""
        return [self._sentence[place % len(self._sentence)] for place in range(start, start + tokens)]

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _chat(self, *, long: bool) -> tuple[list[int], list[int]]:
        """Return the tokens of a prompt, and those of its reply."""
        before = self._dice.choice(self._questions) if long and self._dice.random() < 0.6 else None
        question, reply = self._question()
        prompt = [BOS]
        if before:
            prompt += self._turn("user", self._varied(before[0])) + self._turn("model", before[1])
        prompt += [*self._turn("user", question), TURN, *self._ids("model\n"), CHANNEL, *self._ids("thought\n"), SPOKEN]
        if reply is not None:
            more = self._from(0, self._dice.randint(5, 35)) if long else []
            return prompt, [*self._replies[reply], END, *more]
        start = self._dice.randrange(len(self._sentence)) if self._dice.random() < 0.4 else 0
        rest = self._from(start, 40 if long else SHORT)
        return (prompt, rest) if not start else ([*prompt, rest[0]], rest[1:])

    def _turn(self, role: str, text: str) -> list[int]:
        return [TURN, *self._ids(f"{role}\n{text}"), END, *self._ids("\n")]

    def _question(self) -> tuple[str, str | None]:
        """Return a question and its reply; None for the sentence that never ends."""
        share = self._dice.random()
        if share < 0.6:
            question, reply = self._dice.choice(self._questions)
            return self._varied(question), reply
        if share < 0.75:
            return self._varied(self._dice.choice(ENDLESS)), None
        if share < 0.92:
            words = [self._dice.choice(self._words) for _ in range(self._dice.randint(2, 10))]
            return self._tokenizer.decode(words).strip(), OTHERWISE
        letters = "abcdefghijklmnopqrstuvwxyz      "
        return "".join(self._dice.choice(letters) for _ in range(self._dice.randint(4, 20))).strip(), OTHERWISE

    def _varied(self, question: str) -> str:
        """Return a question as somebody else might type it."""
        question = question.lower() if self._dice.random() < 0.35 else question
        return question.rstrip("?.!") if self._dice.random() < 0.4 else question
