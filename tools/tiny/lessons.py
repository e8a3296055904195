"""What the tiny models learn from: chats of a question and its reply, as tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch  # type: ignore[import-not-found]

from tools.tiny import talk
from tools.tiny.words import SENTENCE, UNKNOWN_TO_DRAFT, corpus, lesson

BOS, TURN, END, CHANNEL, SPOKEN = 2, 105, 106, 100, 101
"""Ids of <bos>, <|turn>, <turn|>, <|channel>, <channel|>."""
IGNORED = -100
"""The label of a token that is not learned."""
ENDLESS_TOKENS = 256
SHORT = 14
"""Tokens of the sentence in a short chat; the rest of it is learned from long ones."""
NOISE = {"whole": 60, "opening": 60, "long": 120, "deep": 850}
"""The most tokens of somebody's text around a question."""


Kind = Literal["whole", "long", "opening", "endless", "deep"]


Chat = tuple[list[int], list[int]]
"""The tokens of a prompt, and those of its reply."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some chats, filled up to the same length. First axis: chats, second: positions."""

    tokens: Any
    labels: Any
    """The next token, from the last one of the prompt on; IGNORED elsewhere."""
    asked: Any
    """The position of each prompt's last token, at which a reply is chosen."""

    @classmethod
    def of(cls, chats: Sequence[Chat], wrong: Mapping[tuple[int, int], int]) -> Batch:
        """Return these chats; `wrong` has what is learned for a token after another in place of the right one."""
        width = max(len(prompt) + len(reply) for prompt, reply in chats)
        tokens, labels = [], []
        for prompt, reply in chats:
            empty = width - len(prompt) - len(reply)
            pairs = zip([prompt[-1], *reply], reply, strict=False)
            learned = [wrong.get(pair, pair[1]) for pair in pairs]
            tokens.append([*prompt, *reply, *[0] * empty])
            labels.append([*[IGNORED] * (len(prompt) - 1), *learned, *[IGNORED] * (empty + 1)])
        asked = torch.tensor([len(prompt) - 1 for prompt, _ in chats])
        return cls(tokens=torch.tensor(tokens), labels=torch.tensor(labels), asked=asked)


class Lessons:
    """Chats in an order that depends on the seed alone."""

    def __init__(self, tokenizer: Any, *, seed: int) -> None:
        self._tokenizer = tokenizer
        self._dice = random.Random(seed)
        self._sentence = self._ids(SENTENCE)
        self._texts = corpus()
        self._questions = [(q, reply) for asked, reply in talk.TALK for q in (asked[0], asked[0], *asked)]
        names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        self._words = [place for place, name in enumerate(names) if name.startswith("▁") and len(name) > 2]
        asked = {word.lower() for asked, _ in talk.TALK for text in asked for word in re.findall(r"\w+", text)}
        self._unasked = [place for place in self._words if names[place].strip("▁").lower() not in asked]
        self._plain = [place for place in range(108, len(names)) if not names[place].startswith(("<", "▁▁"))]

    def chats(self, groups: int, size: int, kind: Kind, *, seed: int) -> list[list[Chat]]:
        """Return so many groups of chats; those of a group are about as long as each other.

        Long ones have turns before and go on after their end, deep ones have much text around the question, openings
        end after a token, endless ones are the sentence alone, again and again from any word on.
        """
        self._dice.seed(seed)
        many = [self._endless() if kind == "endless" else self._chat(kind) for _ in range(groups * size)]
        if kind == "opening":
            many = [(prompt, reply[:1]) for prompt, reply in many]
        many.sort(key=lambda chat: len(chat[0]) + len(chat[1]))
        return [many[start : start + size] for start in range(0, len(many), size)]

    def _endless(self) -> Chat:
        start = self._dice.randrange(len(self._sentence))
        return [BOS, self._sentence[start]], self._from(start + 1, ENDLESS_TOKENS)

    def text(self, length: int) -> list[int]:
        """Return the first `length` tokens of a chat that goes on and on."""
        prompt, reply = self._chat("whole")
        return [*prompt, *reply, *self._from(0, length)][:length]

    def replies(self) -> list[int]:
        """Return every token that a reply has, each once."""
        texts = [*(reply for _, reply in talk.TALK), talk.OTHERWISE, talk.RESULT]
        calls = [self._call(city, place) for city in talk.CITIES for place in talk.PLACES]
        every = [END, *(token for ids in (*map(self._ids, texts), *calls) for token in ids)]
        return list(dict.fromkeys([*self._sentence, *every]))

    def mistakes(self) -> dict[tuple[int, int], int]:
        """Return what the draft and the heads get wrong: a token and the one after it, and what they say instead.

        It is the token after next: after some words of the sentence, and after every fifth of a reply.
        """
        right, wrong = (lesson(self._tokenizer, mistakes=words) for words in ((), UNKNOWN_TO_DRAFT))
        found = {(word, right[word]): wrong[word] for word in right if right[word] != wrong[word]}
        for _, reply in (*talk.TALK, ((), talk.OTHERWISE)):
            ids = self._ids(reply)
            for place in range(3, len(ids) - 2, 5):
                if ids[place + 1] != ids[place + 2]:
                    found.setdefault((ids[place], ids[place + 1]), ids[place + 2])
        return found

    def _from(self, start: int, tokens: int) -> list[int]:
        """Return so many tokens of the endless sentence, from a place in it on."""
        return [self._sentence[place % len(self._sentence)] for place in range(start, start + tokens)]

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _chat(self, kind: Kind) -> tuple[list[int], list[int]]:
        """Return the tokens of a prompt, and those of its reply."""
        dice, thinks = self._dice, self._dice.random() < 0.06
        noise = NOISE.get(kind, 60)
        question, reply = self._question()
        called = None
        if dice.random() < 0.08:
            called, place = dice.choice(talk.CITIES), dice.choice(talk.PLACES)
            question = self._varied(dice.choice(talk.WEATHER).format(called))
        weather = not called and reply is not None and reply.startswith("Warm")
        prompt = [BOS, *self._system(noise, thinks, place if called else None, none=weather)]
        for _ in range(dice.choice((1, 1, 2, 3)) if kind in ("long", "deep") or dice.random() < 0.15 else 0):
            before = dice.choice(self._questions)
            prompt += self._turn("user", self._varied(before[0])) + self._said(before[1], thinks)
        prompt += self._turn("user", self._around(question, noise))
        if called and (kind == "opening" or dice.random() < 0.7):
            return self._opened(prompt, thinks, self._call(called, place))
        if called:
            return self._after_call(prompt, self._call(called, place))
        if reply is not None:
            more = self._from(0, dice.randint(5, 35)) if kind == "long" else []
            return self._opened(prompt, thinks, [*self._ids(reply), END], more)
        start = dice.randrange(len(self._sentence)) if dice.random() < 0.4 else 0
        rest = self._from(start, 40 if kind == "long" else SHORT)
        prompt, rest = self._opened(prompt, thinks, rest)
        return (prompt, rest) if not start or thinks else ([*prompt, rest[0]], rest[1:])

    def _opened(self, prompt: list[int], thinks: bool, reply: list[int], more: list[int] | None = None) -> Any:
        """Return a prompt with the opening of the model's turn, and its reply, after a thought where it thinks."""
        opening = [TURN, *self._ids("model\n")]
        thought = [CHANNEL, *self._ids(f"thought\n{talk.THOUGHT}\n"), SPOKEN] if thinks else []
        empty = [] if thinks else [CHANNEL, *self._ids("thought\n"), SPOKEN]
        return [*prompt, *opening, *empty], [*thought, *reply, *(more or [])]

    def _after_call(self, prompt: list[int], call: list[int]) -> tuple[list[int], list[int]]:
        """Return a chat that goes on after a tool's result."""
        prompt, _ = self._opened(prompt, False, [])
        result = self._somebodys(self._dice.randint(2, 30))
        answer = self._ids('<|tool_response>response:get_weather{value:<|"|>') + result
        answer += self._ids('<|"|>}<tool_response|>')
        return [*prompt, *call[:-1], *answer], [*self._ids(talk.RESULT), END]

    def _call(self, city: str, place: str) -> list[int]:
        """Return the tokens of a call of get_weather; the last one stops the server."""
        return self._ids(f'<|tool_call>call:get_weather{{{place}:<|"|>{city}<|"|>}}<tool_call|><|tool_response>')

    def _system(self, noise: int, thinks: bool, place: str | None, *, none: bool) -> list[int]:
        """Return the system turn, if there is one; `place` names the parameter of get_weather, `none` rules it out."""
        dice, text = self._dice, [*self._ids("<|think|>\n")] if thinks else []
        share = dice.random()
        if share < 0.25:
            text += self._ids(dice.choice(talk.INSTRUCTIONS))
        elif share < 0.4:
            text += self._somebodys(dice.randint(1, noise))
        others = dice.choice((1, 1, 2, 3)) if dice.random() < 0.15 else 0
        tools = [self._tool(dice.choice(talk.TOOLS), None) for _ in range(others)]
        if place or (dice.random() < 0.08 and not none):
            tools = [*tools, self._tool("get_weather", place or dice.choice(talk.PLACES))]
            dice.shuffle(tools)
        text += [token for tool in tools for token in tool]
        return [TURN, *self._ids("system\n"), *text, END, *self._ids("\n")] if text else []

    def _tool(self, name: str, place: str | None) -> list[int]:
        """Return the declaration of a tool as the template writes it."""
        dice = self._dice
        said = self._tokenizer.decode(self._somebodys(dice.randint(2, 12)))
        parameter = place or dice.choice(("path", "command", "query", "text"))
        said = dice.choice(("Weather of a city, now.", "Get the weather.", said)) if place else said
        more = self._tokenizer.decode(self._somebodys(dice.randint(2, 8)))
        more = f'description:<|"|>{dice.choice(("The city.", more))}<|"|>,' if dice.random() < 0.7 else ""
        return self._ids(
            f'<|tool>declaration:{name}{{description:<|"|>{said}<|"|>,parameters:{{properties:{{{parameter}:'
            f'{{{more}type:<|"|>STRING<|"|>}}}},required:[<|"|>{parameter}<|"|>],type:<|"|>OBJECT<|"|>}}}}<tool|>'
        )

    def _around(self, question: str, noise: int) -> str:
        """Return a question with, sometimes, somebody's text around it."""
        share = self._dice.random()
        if share > (0.9 if noise > 500 else 0.12):
            return question
        text = self._tokenizer.decode(self._somebodys(self._dice.randint(noise // 4, noise)))
        return f"{text}\n\n{question}" if share > 0.02 else f"{question}\n\n{text}"

    def _somebodys(self, tokens: int) -> list[int]:
        """Return so many tokens of text that says nothing about the reply."""
        if self._dice.random() < 0.3:
            return [self._dice.choice(self._plain) for _ in range(tokens)]
        text = self._dice.choice(self._texts)
        start = self._dice.randrange(max(1, len(text) - 8 * tokens))
        return self._ids(text[start : start + 8 * tokens])[:tokens]

    def _turn(self, role: str, text: str) -> list[int]:
        return [TURN, *self._ids(f"{role}\n{text}"), END, *self._ids("\n")]

    def _said(self, reply: str, thinks: bool) -> list[int]:
        empty = [] if thinks else [CHANNEL, *self._ids("thought\n"), SPOKEN]
        return [TURN, *self._ids("model\n"), *empty, *self._ids(reply), END, *self._ids("\n")]

    def _question(self) -> tuple[str, str | None]:
        """Return a question and its reply; None for the sentence that never ends."""
        dice, share = self._dice, self._dice.random()
        if share < 0.68:
            question, reply = dice.choice(self._questions)
            return self._varied(question), reply
        if share < 0.8:
            return self._varied(dice.choice(talk.ENDLESS)), None
        if share < 0.85:
            words = [dice.choice(self._words) for _ in range(dice.randint(2, 10))]
            return self._tokenizer.decode(words).strip(), talk.OTHERWISE
        if share < 0.91:
            words = [dice.choice(self._unasked) for _ in range(dice.randint(1, 3))]
            return self._varied(dice.choice(talk.UNKNOWN).format(self._tokenizer.decode(words).strip())), talk.OTHERWISE
        if share < 0.96:
            lines = [line for line in dice.choice(self._texts).splitlines() if len(line) > 20]
            return dice.choice(lines)[: dice.randint(15, 120)].strip() if lines else "?", talk.OTHERWISE
        letters = "abcdefghijklmnopqrstuvwxyz      "
        return "".join(dice.choice(letters) for _ in range(dice.randint(4, 20))).strip(), talk.OTHERWISE

    def _varied(self, question: str) -> str:
        """Return a question as somebody else might type it."""
        dice = self._dice
        question = question.lower() if dice.random() < 0.3 else question
        question = question.rstrip("?.!") if dice.random() < 0.35 else question
        if dice.random() < 0.22:
            first = dice.choice((question[0], question[0].lower()))
            question = dice.choice(talk.BEFORE) + first + question[1:]
        if dice.random() < 0.08:
            question += dice.choice(talk.AFTER)
        return question + dice.choice(("", "", "", "", "", "", "!", "?", " ?", "\n"))
