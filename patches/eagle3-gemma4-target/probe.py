"""Asks the five files of vLLM 0.19.0 in turn whether a Gemma 4 target would do for an EAGLE-3 head."""

from types import SimpleNamespace
from unittest.mock import patch


def probe() -> tuple[bool, str]:
    from vllm.config.speculative import SpeculativeConfig

    config = SimpleNamespace(
        tensor_parallel_size=None,
        num_speculative_tokens=3,
        draft_model_config=None,
        method="eagle3",
        target_model_config=SimpleNamespace(hf_text_config=SimpleNamespace(model_type="gemma4_text")),
        verify_equal_vocab_size_if_draft_model=lambda: None,
    )
    try:
        SpeculativeConfig._verify_args.__wrapped__(config) if hasattr(
            SpeculativeConfig._verify_args, "__wrapped__"
        ) else SpeculativeConfig._verify_args(config)
    except ValueError as error:
        return True, f"ValueError: {error}"
    supported()
    hidden = hidden_states()
    cached = longest_cache_hit()
    token = image_token()
    return False, f"accepted; hidden states of layers {hidden}; {cached} cached blocks; image token {token}"


def supported() -> None:
    from vllm.model_executor.models.gemma4 import Gemma4ForCausalLM
    from vllm.model_executor.models.gemma4_mm import Gemma4ForConditionalGeneration
    from vllm.model_executor.models.interfaces import supports_eagle3

    for model in (Gemma4ForCausalLM, Gemma4ForConditionalGeneration):
        assert supports_eagle3(model), model


def hidden_states() -> list[int]:
    """Run Gemma4Model.forward over four layers that add one each, and look at what it hands out."""
    import torch
    from vllm.model_executor.models import gemma4

    class Model(gemma4.Gemma4Model.__mro__[0]):
        def __init__(self):
            torch.nn.Module.__init__(self)

    model = Model()
    model.layers = [lambda positions, states, residual, **_: (states + 1, None)] * 4
    model.start_layer, model.end_layer = 0, 4
    model.norm = lambda states: states * 100
    model.embed_input_ids = lambda ids: torch.zeros(len(ids), 8)
    model.get_per_layer_inputs = model.project_per_layer_inputs = lambda *_: None
    model._set_aux_hidden_state_layers((1, 2, 4))
    ranks = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    with patch.object(gemma4, "get_pp_group", lambda: ranks):
        last, middle = gemma4.Gemma4Model.forward(model, torch.tensor([1, 2]), torch.tensor([0, 1]), None)
    assert torch.equal(last, torch.full((2, 8), 400.0)), last
    return [int(states[0, 0]) for states in middle]


def longest_cache_hit() -> int:
    """Three cached blocks of 16, a common alignment of 32: the last one is taken off, then one more to end on 32."""
    import torch
    from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    options = {"block_size": 16, "num_kv_heads": 1, "head_size": 256, "dtype": torch.bfloat16}
    spec = SlidingWindowSpec(**options, sliding_window=16)
    pool = SimpleNamespace(null_block="null", get_cached_block=lambda found, groups: [found] * len(groups))
    blocks = SlidingWindowManager.find_longest_cache_hit(
        block_hashes=list(range(5)),
        max_length=80,
        kv_cache_group_ids=[0],
        block_pool=pool,
        kv_cache_spec=spec,
        use_eagle=True,
        alignment_tokens=32,
    )
    assert len(blocks[0]) * 16 % 32 == 0, blocks
    return len(blocks[0])


def image_token() -> int:
    """Load a drafter beside a multimodal Gemma 4, which calls its image token image_token_id."""
    from vllm.v1.spec_decode import eagle

    class Gemma4ForConditionalGeneration:
        config = SimpleNamespace(image_token_id=258880)

        def get_language_model(self):
            return None

    drafter = object.__new__(eagle.SpecDecodeBaseProposer)
    drafter.model = SimpleNamespace(config=SimpleNamespace())
    drafter.vllm_config, drafter.supports_mm_inputs, drafter.parallel_drafting = None, False, False
    drafter._get_model = lambda: drafter.model
    drafter._maybe_share_embeddings = drafter._maybe_share_lm_head = lambda _: None
    with (
        patch.object(eagle, "get_layers_from_vllm_config", lambda *_: {}),
        patch.object(eagle, "supports_multimodal", lambda _: True),
    ):
        drafter.load_model(Gemma4ForConditionalGeneration())
    return drafter.model.config.image_token_index
