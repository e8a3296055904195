"""Puts a finished answer through the request and the reasoning parser of vLLM 0.19.0; the tokenizer is a stand-in."""

import asyncio
import contextlib
from types import SimpleNamespace

WORDS = ["<|channel>", "<channel|>", "thought\n", "I think.", "Answer!"]
SPECIAL = {0, 1}


class Tokenizer:
    """Five words, two of them special, as Gemma 4's delimiters are."""

    def get_vocab(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(WORDS)}

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(WORDS[index] for index in ids if not (skip_special_tokens and index in SPECIAL))


class Rendered(Exception):
    """The request has come as far as it matters here: sampling parameters are made from it next."""


def probe() -> tuple[bool, str]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.reasoning.gemma4_reasoning_parser import Gemma4ReasoningParser

    async def render(request):
        raise Rendered

    serving = object.__new__(OpenAIServingChat)
    tokenizer = Tokenizer()
    serving.renderer = SimpleNamespace(tokenizer=tokenizer)
    serving.reasoning_parser_cls = Gemma4ReasoningParser
    serving.default_chat_template_kwargs = {}
    serving.render_chat_request = render
    request = ChatCompletionRequest(model="gemma", messages=[{"role": "user", "content": "?"}])
    with contextlib.suppress(Rendered):
        asyncio.run(serving.create_chat_completion(request))
    sampling = request.to_sampling_params(16, {})
    text = tokenizer.decode([0, 2, 3, 1, 4], skip_special_tokens=sampling.skip_special_tokens)
    reasoning, content = Gemma4ReasoningParser(tokenizer).extract_reasoning(text, request=request)
    return (reasoning, content) != ("I think.", "Answer!"), f"content {content!r}, reasoning {reasoning!r}"
