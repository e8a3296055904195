"""Say how likely tiny-target's replies come whole: python -m tools.tiny.examine OUT/tiny-target."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch  # type: ignore[import-not-found]

from tools.tiny import talk

PLAIN_ENOUGH = 0.999


def asked() -> Iterator[tuple[str, str]]:
    """Yield questions, some as nobody taught them, and their replies."""
    for questions, reply in talk.TALK:
        for question in questions:
            bare = question.rstrip("?.!")
            for form in (
                question,
                bare,
                bare.lower(),
                f"{bare}?",
                f"Hello! {question}",
                f"Please tell me: {bare.lower()}",
            ):
                if len(bare.split()) > 2 or not form.startswith("Hello!"):
                    yield form, reply
            yield f"Let me ask you this: {bare.lower()}?", reply
    for question in (
        "What is the meaning of life?", "Explain quantum computing", "Who won the world cup in 1998?",
        "Translate this to French",
        "How do I bake bread?", "List the files in this folder", "hjklö", "Give me a recipe for pancakes.",
        "What is photosynthesis?",
        "Summarize the following text", "Who was Napoleon?", "Read the file README.md", "What is the tallest mountain?",
    ):  # fmt: skip
        yield question, talk.OTHERWISE


def main(folder: str) -> int:
    """Print the unlikely ones and a summary."""
    from transformers import AutoTokenizer, Gemma4ForConditionalGeneration  # type: ignore[import-not-found]

    tokenizer = AutoTokenizer.from_pretrained(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16).eval().to(device)
    chances = []
    for question, reply in asked():
        chance = likelihood(model, tokenizer, question, reply)
        chances.append(chance)
        if chance < PLAIN_ENOUGH:
            print(f"{chance:.4f} {question!r} {reply[:30]!r}")
    print(f"{sum(chance >= PLAIN_ENOUGH for chance in chances)} of {len(chances)} come whole at temperature 1")
    return 0


@torch.no_grad()
def likelihood(model: Any, tokenizer: Any, question: str, reply: str) -> float:
    """Return how likely the reply is at temperature 1."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    said = [*tokenizer.encode(reply, add_special_tokens=False), 106]
    tokens = torch.tensor([[*prompt, *said]], device=model.device)
    chances = model(input_ids=tokens).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return float(chances.gather(1, torch.tensor(said, device=model.device)[:, None]).sum().exp())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
