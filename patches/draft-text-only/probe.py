"""Makes a drafter beside a target that accepts images, loads a Gemma 4 E2B, and asks what the first draft reads.

The drafter is made by vLLM's own constructor and loaded by its own load_model. The draft's embed_input_ids is that of
Gemma 4's multimodal class. It gets one token more than the target's mask covers, as in a real first draft. The
configuration and the models' other parts are stand-ins.
"""

import contextlib
from types import SimpleNamespace
from unittest.mock import patch

TOKENS, MASK = 34, 33
WIDTH = 8


class Nothing:
    """A part of a stand-in for VllmConfig: what it was not given is None."""

    def __init__(self, **given) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


class Gemma4ForConditionalGeneration:
    """The target: vLLM goes by its name."""

    config = SimpleNamespace(image_token_id=258880, image_token_index=258880)

    def get_language_model(self):
        return None


def probe() -> tuple[bool, str]:
    check_neighbours()
    try:
        drafter = made(images=True)
    except NotImplementedError as error:
        if "multimodal" not in str(error):
            raise
        return True, f"NotImplementedError: {error}"
    loaded(drafter, images=True)
    try:
        ids, embeds = first_inputs(drafter)
    except RuntimeError as error:
        return True, f"RuntimeError: {error}"
    if embeds is None:
        check_alone(drafter, ids)
        return False, "the draft gets token ids alone"
    assert drafter.supports_mm_inputs is True, "later steps and warm-up go by the attribute, and read token ids"
    assert embeds.tolist() == text(drafter.input_ids[:TOKENS]).tolist(), embeds
    return False, f"the draft gets {len(embeds)} embeddings"


def proposers():
    try:
        from vllm.v1.spec_decode import llm_base_proposer as module
    except ImportError:  # before 0.20
        from vllm.v1.spec_decode import eagle as module
    return module


def configuration(*, images, padded=True, mrope=False):
    import torch

    draft = Nothing(
        get_hidden_size=lambda: WIDTH, get_inputs_embeds_size=lambda: WIDTH, get_vocab_size=lambda: 64,
        hf_config=SimpleNamespace(architectures=["Gemma4ForConditionalGeneration"]),
        uses_mrope=mrope, mrope_num_dims=3, uses_xdrope_dim=0,
    )  # fmt: skip
    ranks = Nothing(tensor_parallel_size=1)
    speculative = Nothing(
        method="draft_model", draft_model_config=draft, num_speculative_tokens=4, parallel_drafting=False,
        disable_padded_drafter_batch=not padded, use_local_argmax_reduction=False, use_heterogeneous_vocab=False,
        speculative_token_tree=str([(0,) * depth for depth in range(1, 5)]),
        verify_equal_vocab_size_if_draft_model=lambda: None, target_parallel_config=ranks, draft_parallel_config=ranks,
    )  # fmt: skip
    model = Nothing(
        dtype=torch.float32, max_model_len=256, get_vocab_size=lambda: 64, supports_multimodal_inputs=images,
        uses_xdrope_dim=0, use_fp64_gumbel=False, images=images,
    )  # fmt: skip
    return Nothing(
        speculative_config=speculative, model_config=model,
        parallel_config=Nothing(data_parallel_rank=0, **vars(ranks)),
        scheduler_config=Nothing(max_num_seqs=4, max_num_batched_tokens=64), compilation_config=Nothing(),
        cache_config=Nothing(block_size=16),
    )  # fmt: skip


@contextlib.contextmanager
def stand_ins(module, more=None):
    registry = SimpleNamespace(supports_multimodal_inputs=lambda model: model.images)
    nothing = dict.fromkeys(("CudagraphDispatcher", "CpuGpuBuffer"), lambda *_, **__: None)
    fakes = {**nothing, "MULTIMODAL_REGISTRY": registry, **(more or {})}
    with contextlib.ExitStack() as stack:
        for name, fake in fakes.items():
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, fake))
        yield


def made(*, images, kind=None, **facts):
    """A drafter, by the constructor of its class; that of a draft model without `kind`."""
    import torch
    from vllm.v1.spec_decode.draft_model import DraftModelProposer

    with stand_ins(proposers()):
        return (kind or DraftModelProposer)(configuration(images=images, **facts), torch.device("cpu"))


def loaded(drafter, *, images) -> None:
    """Let the drafter load its model beside its target."""
    module, draft = proposers(), draft_of_gemma()
    fakes = {
        "get_layers_from_vllm_config": lambda *_: {},
        "supports_multimodal": lambda _: images,
        "supports_multimodal_embeddings": lambda _: True,
    }
    drafter._get_model = lambda: draft
    drafter._maybe_share_embeddings = drafter._maybe_share_lm_head = lambda _: None
    with stand_ins(module, fakes):
        drafter.load_model(Gemma4ForConditionalGeneration())
    assert drafter.model is draft


def draft_of_gemma():
    """An E2B's embed_input_ids, with per-layer embeddings; the language model below it is a stand-in."""
    import torch
    from vllm.model_executor.models.gemma4_mm import Gemma4ForConditionalGeneration as Model

    draft = object.__new__(Model)
    torch.nn.Module.__init__(draft)
    draft.per_layer_embeddings = torch.zeros(64, 2, 4)
    draft.config = SimpleNamespace(text_config=SimpleNamespace(num_hidden_layers=2, hidden_size_per_layer_input=4))
    inner = SimpleNamespace(get_per_layer_inputs=lambda ids: torch.zeros(len(ids), 8))
    draft.language_model = SimpleNamespace(model=inner, embed_input_ids=lambda ids, **_: text(ids))
    draft.get_language_model = lambda: draft.language_model
    return draft


def text(ids):
    """The embeddings of a draft's tokens."""
    return ids[..., None].float().expand(*ids.shape, WIDTH)


def first_inputs(drafter):
    """What the model is called with at the first draft of a step: token ids, and embeddings or None."""
    import torch

    drafter.input_ids[:TOKENS] = torch.arange(1, TOKENS + 1, dtype=torch.int32)
    images = ([], torch.zeros(MASK, dtype=torch.bool)) if drafter.supports_mm_inputs else None
    if hasattr(drafter, "build_model_inputs_first_pass"):
        given, _ = drafter.build_model_inputs_first_pass(TOKENS, TOKENS, images)
        return given["input_ids"], given["inputs_embeds"]
    if images is None:
        return drafter.input_ids[:TOKENS], None  # before 0.20 propose() decides by the same attribute
    return None, drafter.model.embed_input_ids(
        drafter.input_ids[:TOKENS], multimodal_embeddings=images[0], is_multimodal=images[1]
    )


def check_alone(drafter, ids) -> None:
    """Token ids at every step: the steps after the first one go by the attribute."""
    assert drafter.supports_mm_inputs is False, drafter.supports_mm_inputs
    assert ids.tolist() == list(range(1, TOKENS + 1)), ids


def check_neighbours() -> None:
    """A target without images, heads that read the target's states, DFlash, and what else is refused."""
    plain = made(images=False)
    loaded(plain, images=False)
    ids, embeds = first_inputs(plain)
    assert embeds is None
    check_alone(plain, ids)
    head = made(images=True, kind=head_class())
    assert head.supports_mm_inputs is True, "a head beside a target with images reads them"
    loaded(head, images=True)
    assert head.supports_mm_inputs is True, "a loaded head beside a target with images reads them"
    check_dflash()
    for refused in ({"mrope": True}, {"padded": False}):
        try:
            made(images=False, **refused)
        except NotImplementedError:
            continue
        raise AssertionError(f"not refused any more: {refused}")


def head_class():
    from vllm.v1.spec_decode.eagle import EagleProposer

    return EagleProposer


def check_dflash() -> None:
    """DFlash takes a token more too, and may read images: it has a method of its own for that."""
    try:
        from vllm.v1.spec_decode.dflash import DFlashProposer
    except ImportError:
        return
    head = object.__new__(DFlashProposer)
    head.supports_mm_inputs = True
    for name in ("_raise_if_multimodal", "_warn_if_multimodal"):
        if name in vars(DFlashProposer):
            getattr(head, name)()
    assert head.supports_mm_inputs is True, "DFlash reads images"
