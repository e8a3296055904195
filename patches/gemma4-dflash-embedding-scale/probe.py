"""How many drafted tokens are accepted, if a head was taught on what a Gemma 4 reads?

A tiny head of random features is taught the next token from Gemma 4's own embed_input_ids, and then drafts from what
vLLM's DFlash model gives it. Both classes are vLLM's; FAKE layers stand in for the rest of the head.
"""

import contextlib
from types import SimpleNamespace
from unittest.mock import patch

import torch

HIDDEN, WORDS = 64, 48


def probe():
    check_others()
    accepted = drafted(head("gemma4_text", "eagle"))
    seen = f"{accepted} of {WORDS} drafted tokens are accepted"
    if accepted < WORDS // 2:
        return True, seen
    assert accepted == WORDS, seen
    return False, seen


def check_others():
    """Heads in the format of speculators, other targets and other kinds of heads read the bare table."""
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

    class Other(DFlashQwen3Model):
        """A kind of head that inherits, as DFlash 2 does."""

    ids = torch.arange(WORDS)
    for one in (head("gemma4_text", "speculators"), head("qwen3", "eagle"), head("gemma4_text", "eagle", Other)):
        assert torch.equal(one.embed_input_ids(ids), table()), "the bare table"


def drafted(draft) -> int:
    """The head's right answers, where it was taught on the target's embeddings."""
    ids, random = torch.arange(WORDS), torch.Generator().manual_seed(1)
    mixed, shift = torch.randn(HIDDEN, 256, generator=random) / 8, torch.randn(256, generator=random)

    def features(embeds):
        return torch.cos(2 * embeds.float() @ mixed + shift)  # other than a sign, it notices the length

    following = torch.nn.functional.one_hot((ids + 1) % WORDS).float()
    taught = torch.linalg.lstsq(features(target().embed_input_ids(ids)), following).solution
    return int(((features(draft.embed_input_ids(ids)) @ taught).argmax(-1) == (ids + 1) % WORDS).sum())


def table():
    return torch.randn(WORDS, HIDDEN, generator=torch.Generator().manual_seed(0)).bfloat16() / 8


def target():
    """Gemma 4's own part that embeds; without the rest of the model."""
    from vllm.model_executor.models.gemma4 import Gemma4SelfDecoderLayers

    part = object.__new__(Gemma4SelfDecoderLayers)
    torch.nn.Module.__init__(part)
    part.embed_tokens = torch.nn.Embedding.from_pretrained(table())
    part.normalizer = torch.tensor(HIDDEN**0.5, dtype=torch.bfloat16)
    return part


def head(target_type: str, head_type: str, kind=None):
    """vLLM's DFlash model with one FAKE layer, its embeddings shared with the target."""
    from vllm.model_executor.models import qwen3_dflash as module

    config = SimpleNamespace(
        model_type=head_type, vocab_size=WORDS, hidden_size=HIDDEN, num_hidden_layers=1, rms_norm_eps=1e-6,
        dflash_config={"mask_token_id": 0, "target_layer_ids": [0], "use_aux_hidden_state": False}, eagle_config={},
    )  # fmt: skip
    text = SimpleNamespace(model_type=target_type, hidden_size=HIDDEN)
    goal = SimpleNamespace(hf_text_config=text, dtype=torch.bfloat16)
    whole = SimpleNamespace(
        speculative_config=SimpleNamespace(
            draft_model_config=SimpleNamespace(hf_config=config), target_model_config=goal
        ),
        model_config=goal, cache_config=None, quant_config=None,
        compilation_config=SimpleNamespace(mode=0),
    )  # fmt: skip
    chosen = kind or module.DFlashQwen3Model
    model = object.__new__(chosen)
    with contextlib.ExitStack() as stack:
        fakes = {
            "get_current_vllm_config": lambda: whole,
            "get_draft_quant_config": lambda _: None,
            "VocabParallelEmbedding": lambda rows, width, **_: torch.nn.Embedding.from_pretrained(table()),
            "DFlashQwen3DecoderLayer": lambda *_, **__: torch.nn.Identity(),
            "RMSNorm": lambda *_, **__: torch.nn.Identity(),
        }
        for name, fake in fakes.items():
            stack.enter_context(patch.object(module, name, fake))
        if hasattr(module.DFlashQwen3Model, "decoder_layer_cls"):  # from 0.33 on
            layer = fakes["DFlashQwen3DecoderLayer"]
            stack.enter_context(patch.object(module.DFlashQwen3Model, "decoder_layer_cls", staticmethod(layer)))
        plain_init(module.DFlashQwen3Model)(model, vllm_config=whole)
    return model


def plain_init(kind):
    """The constructor that is written in the class, without the one of torch.compile's decorator around it."""
    function = kind.__init__
    while around := [cell.cell_contents for cell in function.__closure__ or () if is_init(cell.cell_contents)]:
        function = around[0]
    return function


def is_init(value) -> bool:
    return callable(value) and getattr(value, "__name__", "") == "__init__"
