"""Which child does Hopper's composite backend choose, which does it capture, and which graph mode does vLLM resolve?

The routing, its graph support and the resolution are vLLM's own; layers and batches are made here.
"""

import contextlib
import itertools
from types import SimpleNamespace
from unittest.mock import patch

import torch
from vllm.config.compilation import CompilationConfig, CompilationMode, CUDAGraphMode
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.composite import requires_mm_prefix
from vllm.v1.attention.backends.triton_flash_attn import TritonFlashAttentionBackend

BUILDER = TritonFlashAttentionBackend.get_builder_cls()
TRITON, FLASH = 0, 1
LENGTHS = (1, 2, 5, 16, 17, 500)
IMAGES = (None, (), ((3, 8),), ((40, 60),), ((100, 380),))
"""Spans of images in a prompt, as vLLM gives them: first and last position."""


def probe():
    policy = routing()
    short = {select(policy, [new], before=1000) for new in (1, 2, 5, 16)}
    mode = resolved(k=4)
    if mode == CUDAGraphMode.PIECEWISE:
        assert short == {FLASH}, short
        assert resolved(k=0) == CUDAGraphMode.FULL_AND_PIECEWISE
        return True, "with 4 drafts vLLM resolves PIECEWISE; short batches go to FlashAttention"
    assert mode == CUDAGraphMode.FULL_AND_PIECEWISE, mode
    assert short == {TRITON}, short
    check_routing(policy)
    check_modes()
    check_drafting()
    check_supported()
    check_head()
    return False, "with 4 drafts vLLM resolves FULL_AND_PIECEWISE; batches of at most 16 tokens a request go to Triton"


def routing():
    """Return the routing of Gemma 4's clamped layers. The policy is in the closure of the builder's constructor."""
    names = BUILDER.__init__.__code__.co_freevars
    policy = BUILDER.__init__.__closure__[names.index("routing_policy")].cell_contents
    return policy(["layer"], config())


def config(*, k=4, clamped=True, v2=True):
    layer = SimpleNamespace(sliding_window=1024, mm_prefix_clamp_sliding_window=clamped)
    full = SimpleNamespace(sliding_window=None)
    return SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context={"layer": layer, "full": full}),
        speculative_config=SimpleNamespace(num_speculative_tokens=k) if k else None,
        use_v2_model_runner=v2,
    )


def batch(lengths, *, before, spans=None):
    """Return a batch: each request has so many new tokens after `before` computed ones; images lie in the first."""
    starts = [0, *itertools.accumulate(lengths)]
    ranges = None if spans is None else {index: list(spans) if index == 0 else [] for index in range(len(lengths))}
    return SimpleNamespace(
        mm_req_doc_ranges=ranges,
        max_query_len=max(lengths),
        seq_lens_cpu_upper_bound=torch.tensor([before + new for new in lengths]),
        query_start_loc_cpu=torch.tensor(starts),
        num_reqs=len(lengths),
    )


def select(policy, lengths, *, before, spans=None):
    return policy.select(batch(lengths, before=before, spans=spans))


def check_routing(policy):
    """Query lengths, image ranges, chunks and mixed batches: Triton wherever a mask is needed, or queries are short."""
    beside = ((), (1,), (5, 5), (900,))
    for new, spans, before, others in itertools.product(LENGTHS, IMAGES, (0, 40, 100, 4096), beside):
        made = batch([new, *others], before=before, spans=spans)
        masked = requires_mm_prefix(made)
        short = made.max_query_len <= 16
        assert policy.select(made) == (TRITON if masked or short else FLASH), (new, spans, before, others)
    assert select(policy, [400], before=0, spans=((100, 380),)) == TRITON, "a prompt with its image"
    assert select(policy, [5], before=376, spans=((100, 380),)) == TRITON, "the rest of a prompt ends in its image"
    assert select(policy, [400], before=381, spans=((100, 380),)) == FLASH, "the image was computed before"
    assert policy.capture_variant == TRITON, "a graph replays what it captured"


def check_modes():
    """What supports graphs as before, and what resolves beside a draft."""
    full, piecewise = CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.PIECEWISE
    assert [resolved(k=k) for k in (0, 1, 15, 16)] == [full, full, full, piecewise], "17 tokens are no short query"
    assert resolved(k=4, v2=False) == piecewise, "runner V1 replays graphs for parts of prompts"
    assert resolved(k=4, clamped=False) == piecewise
    assert resolved(k=0, clamped=False) == piecewise
    assert resolved(k=4, compiled=False) == CUDAGraphMode.FULL_DECODE_ONLY
    assert resolved(k=4, compiled=False, v2=False) == CUDAGraphMode.NONE


def resolved(*, k, compiled=True, **facts):
    """Return the graph mode that vLLM resolves for this composite in the default mode."""
    own = next(
        cell.cell_contents
        for cell in BUILDER.get_cudagraph_support.__func__.__closure__
        if hasattr(cell.cell_contents, "variant_uses_mm_prefix")
    )
    support = own.get_cudagraph_support(config(k=k, **facts), None)
    mode = CompilationMode.VLLM_COMPILE if compiled else CompilationMode.NONE
    wanted = CUDAGraphMode.FULL_AND_PIECEWISE if compiled else CUDAGraphMode.FULL_DECODE_ONLY
    asked = CompilationConfig(mode=mode, cudagraph_mode=wanted)
    if compiled:
        asked.set_splitting_ops_for_v1(all2all_backend="", data_parallel_size=1)
    assert isinstance(support, AttentionCGSupport)
    return asked.resolve_cudagraph_mode_and_sizes(support, "composite", 1 + k, True)


def check_drafting():
    """The builder updates a draft's metadata with the child that built them, if both can."""
    updated = []
    children = [SimpleNamespace(update_draft_decode_metadata=lambda _, one=one: updated.append(one)) for one in "tf"]
    made = object.__new__(BUILDER)
    made.general_builder, made.causal_builder = children
    for variant in (TRITON, FLASH):
        made.update_draft_decode_metadata(SimpleNamespace(_attention_backend_variant=variant))
    assert updated == ["t", "f"], updated


def check_supported():
    """A composite updates a draft's metadata if both of its children can."""
    for first, second in itertools.product((True, False), repeat=2):
        made = composite_of(first, second)(None, ["layer"], config(), "cpu")
        assert made.supports_draft_decode_metadata_update is (first and second), (first, second)


def composite_of(*supported):
    """Return the builder of a composite of two FAKE backends, routed as vLLM's."""
    from vllm.v1.attention.backends.composite import create_composite_attention_backend

    names = BUILDER.__init__.__code__.co_freevars
    policy = BUILDER.__init__.__closure__[names.index("routing_policy")].cell_contents
    backends = [fake_backend(name, can) for name, can in zip("ab", supported, strict=True)]
    whole = create_composite_attention_backend(
        *backends, name="Fake", backend_name="FAKE", module=__name__, routing_policy=policy
    )
    return whole.get_builder_cls()


def fake_backend(name, can):
    class Builder:
        requires_block_table_width = False
        reorder_batch_threshold = None
        supports_draft_decode_metadata_update = can

        def __init__(self, *_):
            pass

    class Backend(FakeBackend):
        full_cls_name = staticmethod(lambda: (name, str(can)))
        get_builder_cls = staticmethod(lambda: Builder)

    return Backend


def check_head():
    """The MTP head's sliding windows are clamped as those of the target, and its full layers have none."""
    from vllm.model_executor.models import gemma4_mtp as module

    made = SimpleNamespace(
        attention_bias=False, rms_norm_eps=1e-6, layer_types=["sliding_attention", "full_attention"],
        sliding_window=512, rope_parameters={"rope_theta": 10000.0},
    )  # fmt: skip
    fakes = dict.fromkeys(("ColumnParallelLinear", "RowParallelLinear", "RMSNorm", "get_rope"), fake_layer)
    with contextlib.ExitStack() as stack:
        fakes |= {"Attention": FakeAttention, "get_tensor_model_parallel_world_size": int_one}
        for name, fake in fakes.items():
            stack.enter_context(patch.object(module, name, fake))
        for at, window in enumerate((512, None)):
            layer = module.Gemma4MTPAttention(made, 64, 4, 1, 16, 1024, prefix=f"model.layers.{at}.self_attn")
            own = layer.attn
            assert own.sliding_window == window, own.sliding_window
            assert window is None or own.mm_prefix_clamp_sliding_window is True, "the head's window is not clamped"


class FakeAttention(torch.nn.Module):
    """FAKE: keeps what vLLM's layer would know of windows."""

    def __init__(self, *_, per_layer_sliding_window=None, mm_prefix_clamp_sliding_window=False, **__):
        super().__init__()
        self.sliding_window = per_layer_sliding_window
        self.mm_prefix_clamp_sliding_window = mm_prefix_clamp_sliding_window


class FakeBackend:
    forward_includes_kv_cache_update = False
    get_impl_cls = staticmethod(lambda: object)


def fake_layer(*_, **__):
    return torch.nn.Identity()


def int_one():
    return 1
