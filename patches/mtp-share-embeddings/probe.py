"""Shares a target's embeddings (12 wide) with a Gemma 4 assistant (8 wide), then lets that embed and project."""

from types import SimpleNamespace
from unittest.mock import patch


def probe() -> tuple[bool, str]:
    import torch
    from vllm.model_executor.models.gemma4_mtp import Gemma4MultiTokenPredictor
    from vllm.v1.spec_decode import llm_base_proposer

    wide, narrow = torch.nn.Embedding(32, 12), torch.nn.Embedding(32, 8)
    assistant = object.__new__(Gemma4MultiTokenPredictor)
    torch.nn.Module.__init__(assistant)
    assistant.embed_tokens, assistant.normalizer = narrow, 12**0.5
    project = torch.nn.Linear(2 * 12, 8, bias=False)
    assistant.pre_projection = lambda states: (project(states), None)
    assistant.layers, assistant.norm = [], torch.nn.Identity()
    assistant.post_projection = lambda states: (states, None)

    drafter = object.__new__(llm_base_proposer.SpecDecodeBaseProposer)
    drafter.model = SimpleNamespace(model=assistant)
    target = SimpleNamespace(model=SimpleNamespace(embed_tokens=wide))
    with patch.object(llm_base_proposer, "get_pp_group", lambda: SimpleNamespace(world_size=1)):
        drafter._maybe_share_embeddings(target)
    ids = torch.tensor([1, 2])
    try:
        drafted, _ = assistant(ids, torch.tensor([0, 1]), torch.zeros(2, 12))
    except RuntimeError as error:
        return True, f"RuntimeError: {error}"
    expected = project(torch.cat([wide(ids) * 12**0.5, torch.zeros(2, 12)], dim=-1))
    assert torch.allclose(drafted, expected)
    return False, f"the assistant embeds with the target's {assistant.embed_tokens.weight.shape[-1]}-wide embeddings"
