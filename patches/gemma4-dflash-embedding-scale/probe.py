"""How many drafted tokens are accepted, if a head was taught on what a Gemma 4 reads?

A tiny head of random features is taught the next token from Gemma 4's own embed_input_ids, and then drafts from what
vLLM's DFlash model gives it. Both classes are vLLM's; FAKE layers stand in for the rest of the head.
"""

import contextlib
from types import SimpleNamespace
from unittest.mock import patch

import torch

HIDDEN, WORDS = 60, 48
"""A root of 60 is not exact: vLLM's target rounds it."""


def probe():
    check_others()
    accepted = drafted(head("gemma4_text", "eagle"))
    seen = f"{accepted} of {WORDS} drafted tokens are accepted"
    if accepted < WORDS // 2:
        return True, seen
    assert accepted == WORDS, seen
    check_read()
    return False, seen


def check_others():
    """Heads in the format of speculators, other targets and other kinds of heads read the bare table."""
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

    class Other(DFlashQwen3Model):
        """A kind of head that inherits, as DFlash 2 does."""

    for more in ({}, {"with_states": True}):
        others = (
            head("gemma4_text", "speculators", **more),
            head("qwen3", "eagle", **more),
            head("gemma4_text", "eagle", Other, **more),
        )
        for one in others:
            assert torch.equal(read_by(one), table()), "the bare table"


def check_read():
    """Every Gemma 4 gives its head what it reads itself, twice alike; a mask of the head's own stays as it is."""
    ids = torch.arange(WORDS)
    wanted = target().embed_input_ids(ids)
    for model in ("gemma4_text", "gemma4_unified_text"):
        for more in ({}, {"with_states": True}):
            one = head(model, "eagle", **more)
            for _ in range(2):
                assert torch.equal(read_by(one), wanted), f"{model}: other embeddings than the target's"
            assert torch.equal(one.embed_tokens.weight, table()), "the target's table is changed"
            one.has_separate_mask_embedding = True
            one.mask_embedding.data.fill_(0.25)
            read = read_by(one)
            assert (read[0] == 0.25).all(), "the mask is the head's own"
            assert torch.equal(read[1:], wanted[1:]), model


def read_by(one):
    """What the layers of a head get; they are one FAKE that keeps it."""
    one.forward(torch.arange(WORDS), torch.arange(WORDS))
    (layer,) = one.layers
    return layer.read


class Layer(torch.nn.Module):
    """FAKE: keeps what it is given."""

    def forward(self, *, positions, hidden_states, residual):
        self.read = hidden_states
        return hidden_states, torch.zeros_like(hidden_states)


class Norm(torch.nn.Module):
    """FAKE: changes nothing."""

    def forward(self, states, residual=None):
        return states if residual is None else (states, residual)


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


def head(target_type: str, head_type: str, kind=None, *, with_states=False):
    """vLLM's DFlash model with one FAKE layer, its embeddings those of the target; released ones have hidden states."""
    from vllm.model_executor.models import qwen3_dflash as module

    config = SimpleNamespace(
        model_type=head_type, vocab_size=WORDS, hidden_size=HIDDEN, num_hidden_layers=1, rms_norm_eps=1e-6,
        dflash_config={"mask_token_id": 0, "target_layer_ids": [0], "use_aux_hidden_state": with_states},
        eagle_config={},
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
            "DFlashQwen3DecoderLayer": lambda *_, **__: Layer(),
            "RMSNorm": lambda *_, **__: Norm(),
            "ReplicatedLinear": lambda *_, **__: torch.nn.Identity(),
            "_get_dflash_fc_input_size": lambda *_, **__: HIDDEN,
        }
        for name, fake in fakes.items():
            stack.enter_context(patch.object(module, name, fake, create=True))
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
