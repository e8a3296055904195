"""Loads a Gemma 4 assistant (8 wide) beside a target (12 wide), then lets it embed and project.

The drafter's own load_model shares the embeddings. EAGLE heads must share and keep theirs as before.
"""

from types import SimpleNamespace
from unittest.mock import patch


def probe() -> tuple[bool, str]:
    import torch
    from vllm.model_executor.models.gemma4_mtp import Gemma4MultiTokenPredictor

    check_heads()
    wide, narrow = torch.nn.Embedding(32, 12), torch.nn.Embedding(32, 8)
    assistant = object.__new__(Gemma4MultiTokenPredictor)
    torch.nn.Module.__init__(assistant)
    assistant.embed_tokens, assistant.normalizer = narrow, 12**0.5
    project = torch.nn.Linear(2 * 12, 8, bias=False)
    assistant.pre_projection = lambda states: (project(states), None)
    assistant.layers, assistant.norm = [], torch.nn.Identity()
    assistant.post_projection = lambda states: (states, None)
    load(SimpleNamespace(model=assistant, config=SimpleNamespace()), wide)
    ids = torch.tensor([1, 2])
    try:
        drafted, _ = assistant(ids, torch.tensor([0, 1]), torch.zeros(2, 12))
    except RuntimeError as error:
        return True, f"RuntimeError: {error}"
    expected = project(torch.cat([wide(ids) * 12**0.5, torch.zeros(2, 12)], dim=-1))
    assert torch.allclose(drafted, expected)
    assert assistant.embed_tokens is wide, "the assistant has embeddings of its own"
    return False, f"the assistant embeds with the target's {assistant.embed_tokens.weight.shape[-1]}-wide embeddings"


def load(model, embeddings) -> None:
    """Load a draft beside a target with these embeddings, by vLLM's own load_model."""
    from vllm.v1.spec_decode import llm_base_proposer

    drafter = object.__new__(llm_base_proposer.SpecDecodeBaseProposer)
    drafter.vllm_config, drafter.supports_mm_inputs, drafter.parallel_drafting = None, False, False
    drafter.method = "mtp"
    drafter._get_model = lambda: model
    drafter._maybe_share_lm_head = lambda _: None
    target = SimpleNamespace(model=SimpleNamespace(embed_tokens=embeddings))
    with (
        patch.object(llm_base_proposer, "get_pp_group", lambda: SimpleNamespace(world_size=1)),
        patch.object(llm_base_proposer, "get_layers_from_vllm_config", lambda *_: {}),
        patch.object(llm_base_proposer, "supports_multimodal", lambda _: False),
    ):
        drafter.load_model(target)


def check_heads() -> None:
    """An EAGLE head takes the target's embeddings if it has none and the widths agree, and keeps what it has."""
    import torch

    target = torch.nn.Embedding(32, 12)
    same = torch.nn.Embedding.from_pretrained(target.weight.detach().clone())
    cases = [
        (torch.nn.Embedding(32, 8), False, False, "of another width"),
        (torch.nn.Embedding(32, 12), False, True, "without embeddings"),
        (torch.nn.Embedding(32, 12), True, False, "with embeddings of its own"),
        (same, True, True, "with the target's embeddings"),
    ]
    for own, has_own, shares, name in cases:
        head = SimpleNamespace(
            model=SimpleNamespace(embed_tokens=own), has_own_embed_tokens=has_own, config=SimpleNamespace()
        )
        load(head, target)
        assert head.model.embed_tokens is (target if shares else own), f"an EAGLE head {name}"
