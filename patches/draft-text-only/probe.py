"""A drafter beside a multimodal target: is it refused, and if not, does it still hand on the target's mask?

A draft of Gemma 4's own multimodal class gets one token more than the mask covers, as in a real first draft.
"""

from types import SimpleNamespace


def probe() -> tuple[bool, str]:
    drafter = drafter_beside_images()
    guard = getattr(drafter, "_raise_if_multimodal", None) or drafter._warn_if_multimodal
    try:
        guard()
    except NotImplementedError as error:
        return True, f"NotImplementedError: {error}"
    try:
        embed(mask_length=33 if drafter.supports_mm_inputs else None)
    except RuntimeError as error:
        return True, f"RuntimeError: {error}"
    return False, "the draft gets token ids alone"


def drafter_beside_images():
    try:
        from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
    except ModuleNotFoundError:  # before 0.20
        from vllm.v1.spec_decode.eagle import SpecDecodeBaseProposer
    drafter = object.__new__(SpecDecodeBaseProposer)
    drafter.supports_mm_inputs = True
    return drafter


def embed(mask_length: int | None) -> None:
    """Gemma 4's embed_input_ids for 34 tokens, with per-layer embeddings, as E2B and E4B have them."""
    import torch
    from vllm.model_executor.models.gemma4_mm import Gemma4ForConditionalGeneration as Model

    draft = object.__new__(Model)
    torch.nn.Module.__init__(draft)
    draft.per_layer_embeddings = torch.zeros(64, 2, 4)
    text = SimpleNamespace(num_hidden_layers=2, hidden_size_per_layer_input=4)
    draft.config = SimpleNamespace(text_config=text)
    inner = SimpleNamespace(get_per_layer_inputs=lambda ids: torch.zeros(len(ids), 8))
    draft.language_model = SimpleNamespace(model=inner, embed_input_ids=lambda ids, **_: torch.zeros(len(ids), 8))
    draft.get_language_model = lambda: draft.language_model
    mask = None if mask_length is None else torch.zeros(mask_length, dtype=torch.bool)
    draft.embed_input_ids(torch.zeros(34, dtype=torch.int32), None, is_multimodal=mask)
